# scenarios.sh: the list of what run.sh does: name, whether it belongs to the short run, a time limit that fits emulated
# processors on a busy host, the device of each guest, what they do (inside.sh), and what is looked at afterwards.
kills=${VM_KILLS:-6}
for t in tcp ${has_rdma:+rdma}; do
    short=$([ $t = rdma ] || [ -z "$has_rdma" ] && echo short || echo long)
    d=$([ $t = rdma ] && echo rxe || echo none)
    scenario ${t}_conformance long $([ $t = rdma ] && echo 600 || echo 300) "$d" "scenario_conformance $t" shown
    scenario ${t}_collectives $short 180 "$d $d" "scenario_collectives $t 150 1000000" "$([ $t = rdma ] && echo over_rdma || echo measured) 2 150"
    scenario ${t}_process_kills $short 240 "$d $d" "scenario_kills $t $kills" "judge 4 50"
    for ((k = 1; k <= ${VM_GUEST_KILLS:-1}; k++)); do
        name=${t}_guest_killed$([ $k -gt 1 ] && echo "_$k")
        scenario $name $short 180 "$d $d $d" "scenario_guest_killed $t $((30 + k * 17 % 40))" "judge 2 70"
    done
    scenario ${t}_guest_frozen long 240 "$d $d $d" "scenario_frozen $t" "one_out 2 100"
    scenario ${t}_port_down long 240 "$d $d $d" "scenario_port $t" "one_out 2 100"
    scenario ${t}_loss_and_delay long 240 "$d $d" "scenario_netem $t 'delay 5ms loss 1%' 40" "undisturbed 2 40"
done
[ -z "$has_rdma" ] || scenario rdma_copies short 180 "rxe rxe" "scenario_copies rdma" uncopied
[ -z "$has_rdma" ] || scenario rdma_windows short 180 "rxe rxe" "scenario_windows rdma 12" stood_still
scenario mixed_collectives short 240 "rxe rxe none none" "scenario_collectives auto 80 400000" "$([ -n "$has_rdma" ] && echo over_rdma || echo measured) 4 80"
[ -z "$has_rdma" ] || VM_MEMORY=${VM_MEMORY:-3072} scenario rdma_many_ranks long 900 "rxe rxe" "scenario_many auto ${VM_RANKS:-32} 400000" shown
[ -z "$has_rdma" ] || scenario rdma_two_devices long 180 rxe "scenario_two_devices" shown
# Soft-RoCE stops on the way, sooner or later: then over TCP, as there is a reconnect time, and nothing fails.
[ -z "$has_rdma" ] || scenario auto_loss_and_delay long 300 "rxe rxe" "RG_RECONNECT_MS=5000 RG_LOG=info; export RG_RECONNECT_MS RG_LOG
    scenario_netem auto 'delay 5ms loss 1%' 150" fell_back
scenario memory_limit long 180 rxe "scenario_memlock ${has_rdma:+rdma}" shown
scenario wan_rate_and_delay short 120 none "scenario_wan 20 20 0 6000000 15" shown
