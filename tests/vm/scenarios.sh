# scenarios.sh: the list of what run.sh does: name, whether it belongs to the short run, a time limit that fits emulated
# processors on a busy host, the device of each guest, what they do (inside.sh), and what is looked at afterwards.
kills=${VM_KILLS:-6}
for t in tcp ${has_rdma:+rdma}; do
    short=$([ $t = rdma ] || [ -z "$has_rdma" ] && echo short || echo long)
    d=$([ $t = rdma ] && echo rxe || echo none)
    scenario ${t}_conformance $short 240 "$d" "scenario_conformance $t" shown
    scenario ${t}_collectives $short 180 "$d $d" "scenario_collectives $t 150 1000000" "random 150"
    scenario ${t}_process_kills $short 240 "$d $d" "scenario_kills $t $kills" "judge 50"
    scenario ${t}_guest_killed $short 180 "$d $d $d" "scenario_guest_killed $t" "judge 100"
    scenario ${t}_guest_frozen long 240 "$d $d $d" "scenario_frozen $t" one_out
    scenario ${t}_port_down long 240 "$d $d $d" "scenario_port $t" one_out
    scenario ${t}_loss_and_delay long 240 "$d $d" "scenario_netem $t 'delay 5ms loss 1%' 40" "all_stayed 40"
done
scenario wan_rate_and_delay short 120 none "scenario_wan 20 20 0 6000000 15" shown
