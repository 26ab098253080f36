# table.awk: from the lines of all runs (transport setting collective ranks in_place round library algorithm bytes
# median_us quartile_us quartile_us calls wrong) to the table on standard output and the JSON file named by `json`: one row for
# every point and kind of buffer. A library's figure is the median over the rounds of its best algorithm for that
# point. `bare` names a file of lines "collective ranks bytes buffers us": what a loop without a library takes over
# shared memory; the last columns of the table are its time divided by ours. `libraries` lists all that were to run, `why` tells why the reno setting was not.
# The goals are those that the project holds itself to: see goal().
function median_of(list,    a, n, i, j, x) {
    n = split(list, a, " ")
    for (i = 2; i <= n; i++) {
        x = a[i] + 0
        for (j = i - 1; j > 0 && a[j] + 0 > x; j--) a[j + 1] = a[j]
        a[j + 1] = x
    }
    low = a[1] + 0; high = a[n] + 0; rounds_of = n
    return n % 2 ? a[(n + 1) / 2] + 0 : (a[n / 2] + a[n / 2 + 1]) / 2
}
# How many times faster than the best peer a point is to be; 0: nothing was set.
function goal(transport, setting, bytes, alloc) {
    if (bytes <= 4096) return bytes >= 8 ? 1 : 0
    if (bytes < 65536) return 0
    if (transport == "tcp") return setting == "reno" ? 1.15 : 1.4
    if (bytes < 1048576) return alloc ? 2 : 1
    return alloc ? 3 : 1.4
}
# The figure of one library at one point: value, name, lo, hi, count; 0 when it did not run.
function figure(row, library,    m, a, alg, x) {
    value = 0
    m = split(algorithms[row, library], alg, " ")
    for (a = 1; a <= m; a++) {
        x = median_of(times[row SUBSEP library SUBSEP alg[a]])
        if (value == 0 || x < value) {
            value = x; name = alg[a]; lo = low; hi = high; count = rounds_of
            if (count == 1) { lo = least[row SUBSEP library SUBSEP name]; hi = most[row SUBSEP library SUBSEP name] }
        }
    }
    return value
}
function json_row(buffers, ours,    l, medians, spreads, used, r, g, b) {
    medians = spreads = used = ""
    for (l = 1; l <= n_lib; l++) {
        if (lib[l] ~ /^regroup/ && lib[l] != ours || !(lib[l] in got)) continue
        sep = medians == "" ? "" : ", "
        b = lib[l] ~ /^regroup/ ? "regroup" : lib[l]
        medians = medians sep sprintf("\"%s\": %.2f", b, got[lib[l]])
        spreads = spreads sep sprintf("\"%s\": [%.2f, %.2f]", b, from[lib[l]], to[lib[l]])
        used = used sep sprintf("\"%s\": \"%s\"", b, with[lib[l]])
    }
    r = best != "" && (ours in got) ? got[best] / got[ours] : 0
    g = goal(f[1], f[2], f[6], ours != "regroup")
    b = f[1] == "shm" && (f[3], f[4], f[6], buffers) in bare_times ? median_of(bare_times[f[3], f[4], f[6], buffers]) : 0
    bare_ratio = b && (ours in got) ? b / got[ours] : 0
    printf "%s\n  {\"collective\": \"%s\", \"transport\": \"%s\", \"setting\": \"%s\", \"ranks\": %d, \"bytes\": %d, " \
           "\"buffers\": \"%s\", \"in_place\": %s, \"median_us\": {%s}, \"best_peer\": %s, \"ratio\": %s, \"goal\": %s, " \
           "\"met\": %s, \"bare_us\": %s, \"bare_ratio\": %s, \"rounds\": %d, \"spread_us\": {%s}, \"algorithm\": {%s}, " \
           "\"errors\": %d}", (n_json++ ? "," : ""), f[3], f[1], f[2], f[4], f[6], buffers, f[5] ? "true" : "false",
           medians, best == "" ? "null" : "\"" best "\"", r ? sprintf("%.3f", r) : "null", g ? g : "null",
           g && r ? (r >= g ? "true" : "false") : "null", b ? b : "null",
           bare_ratio ? sprintf("%.3f", bare_ratio) : "null", runs, spreads, used, errors > json
    if (g && r) {
        k = f[1] " " f[2] " " buffers " " (f[6] <= 4096 ? "up to 4 KiB" : f[6] < 1048576 ? "64 KiB up to 1 MiB" : "1 MiB and more") ": " g
        if (!(k in points)) order[++n_goals] = k
        points[k]++
        met[k] += r >= g
    }
    return r
}
function figures(x) { return x ? sprintf("%.2f", x) : "-" }
BEGIN {
    n_lib = split(libraries, lib, " ")
    if (bare != "") while ((getline line < bare) > 0) if (split(line, q, " ") == 5) bare_times[q[1], q[2], q[3], q[4]] = bare_times[q[1], q[2], q[3], q[4]] " " q[5]
}
$10 + 0 > 0 {
    row = $1 " " $2 " " $3 " " $4 " " $5 " " $9
    if (!(row in seen)) { seen[row] = 1; rows[++n_rows] = row }
    key = row SUBSEP $7 SUBSEP $8
    times[key] = times[key] " " $10
    least[key] = $11; most[key] = $12
    if (index(algorithms[row, $7] " ", " " $8 " ") == 0) algorithms[row, $7] = algorithms[row, $7] " " $8
    wrong[row] += $14
}
END {
    printf "[" > json
    for (r = 1; r <= n_rows; r++) {
        split(rows[r], f, " ")
        head = f[1] " " f[2] " " f[3] " " f[4] " " f[5]
        if (head != before) {
            printf "\n%s over %s%s, %d processes%s\n%10s", f[3], f[1], f[1] == "tcp" ? " (" f[2] ")" : "", f[4],
                   f[5] ? ", in place" : "", "bytes"
            for (l = 1; l <= n_lib; l++) if (lib[l] != "regroup-alloc" || f[1] == "shm") printf " %22s", lib[l]
            printf "  %-8s %6s%s\n", "best", "ratio", f[1] == "shm" ? "  alloc   bare  alloc" : ""
        }
        before = head
        printf "%10d", f[6]
        best = ""; errors = wrong[rows[r]] + 0; runs = 0
        delete got
        for (l = 1; l <= n_lib; l++) {
            if (lib[l] == "regroup-alloc" && f[1] != "shm") continue
            if (!figure(rows[r], lib[l])) { printf " %22s", "-"; continue }
            if (count > runs) runs = count
            printf " %13.1f %8s", value, (index(substr(algorithms[rows[r], lib[l]], 2), " ") ? substr(name, 1, 8) : sprintf("+-%.0f%%", 50 * (hi - lo) / value))
            got[lib[l]] = value; from[lib[l]] = lo; to[lib[l]] = hi; with[lib[l]] = name
            if (lib[l] !~ /^regroup/ && (best == "" || value < got[best])) best = lib[l]
        }
        ratio = json_row("ordinary", "regroup")
        to_bare = bare_ratio
        bare_ratio = 0
        alloc = "regroup-alloc" in got ? json_row("alloc", "regroup-alloc") : 0
        printf "  %-8s %6s", best, figures(ratio)
        if (f[1] == "shm") printf " %6s %6s %6s", figures(alloc), figures(to_bare), figures(bare_ratio)
        printf "%s\n", errors ? "  WRONG RESULTS" : ""
        total_wrong += errors
    }
    if (why != "") {
        printf "\nreno: not run: %s\n", why
        printf "%s\n  {\"transport\": \"tcp\", \"setting\": \"reno\", \"median_us\": {}, \"best_peer\": null, " \
               "\"ratio\": null, \"not_run\": \"%s\"}", (n_json++ ? "," : ""), why > json
    }
    printf "\n]\n" > json
    close(json)
    if (n_goals) printf "\nGoals (times the best peer's speed): points that reach them\n"
    for (k = 1; k <= n_goals; k++) printf "  %-58s %3d of %d\n", order[k], met[order[k]], points[order[k]]
    if (total_wrong) { printf "\n%d WRONG ELEMENTS\n", total_wrong; exit 1 }
}
