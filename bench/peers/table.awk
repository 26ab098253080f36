# table.awk: from the lines of all runs (congestion ranks in_place round library algorithm bytes median_us ...) to the
# table on standard output and the JSON file named by `json`. Of each library the figure is the median over the rounds
# of its best algorithm for that size. `libraries` is the list of those that were to run, `why` why reno was not.
function median_of(list,    a, n, i, j, x) {
    n = split(list, a, " ")
    for (i = 2; i <= n; i++) {
        x = a[i] + 0
        for (j = i - 1; j > 0 && a[j] + 0 > x; j--) a[j + 1] = a[j]
        a[j + 1] = x
    }
    low = a[1] + 0; high = a[n] + 0
    return n % 2 ? a[(n + 1) / 2] + 0 : (a[n / 2] + a[n / 2 + 1]) / 2
}
$8 + 0 > 0 {
    row = $1 " " $2 " " $3 " " $7
    if (!(row in seen)) { seen[row] = 1; rows[++n_rows] = row }
    key = row SUBSEP $5 SUBSEP $6
    times[key] = times[key] " " $8
    if (index(algorithms[row, $5], " " $6 " ") == 0) algorithms[row, $5] = algorithms[row, $5] " " $6 " "
    wrong[row, $5] += $12
}
END {
    n_lib = split(libraries, lib, " ")
    printf "%-8s %5s %9s %-6s", "tcp", "ranks", "bytes", "place"
    for (l = 1; l <= n_lib; l++) printf " %22s", lib[l]
    printf "  %-8s %s\n", "best", "ratio"
    printf "[" > json
    for (r = 1; r <= n_rows; r++) {
        split(rows[r], f, " ")
        printf "%-8s %5d %9d %-6s", f[1], f[2], f[4], f[3] ? "in" : "out"
        best = ""; medians = ""; spreads = ""; used = ""; errors = 0
        for (l = 1; l <= n_lib; l++) {
            value = 0
            m = split(algorithms[rows[r], lib[l]], alg, " ")
            for (a = 1; a <= m; a++) {
                x = median_of(times[rows[r] SUBSEP lib[l] SUBSEP alg[a]])
                if (value == 0 || x < value) { value = x; name = alg[a]; lo = low; hi = high }
            }
            errors += wrong[rows[r], lib[l]]
            if (value == 0) { printf " %22s", "not run"; continue }
            printf " %13.1f %8s", value, (m == 1 ? sprintf("+-%.0f%%", 50 * (hi - lo) / value) : substr(name, 1, 8))
            sep = medians == "" ? "" : ", "
            medians = medians sep sprintf("\"%s\": %.2f", lib[l], value)
            spreads = spreads sep sprintf("\"%s\": [%.2f, %.2f]", lib[l], lo, hi)
            used = used sep sprintf("\"%s\": \"%s\"", lib[l], name)
            got[lib[l]] = value
            if (lib[l] != "regroup" && (best == "" || value < got[best])) best = lib[l]
            if (lib[l] == "regroup") ours = value
        }
        ratio = best != "" && ours > 0 ? got[best] / ours : 0
        printf "  %-8s %s%s\n", best, ratio ? sprintf("%.2f", ratio) : "-", errors ? "  WRONG RESULTS" : ""
        printf "%s\n  {\"collective\": \"all_reduce\", \"transport\": \"tcp\", \"ranks\": %d, \"bytes\": %d, \"median_us\": {%s}, " \
               "\"best_peer\": %s, \"ratio\": %s, \"in_place\": %s, \"congestion\": \"%s\", \"rounds\": %d, " \
               "\"spread_us\": {%s}, \"algorithm\": {%s}, \"errors\": %d}", (r == 1 ? "" : ","), f[2], f[4], medians,
               best == "" ? "null" : "\"" best "\"", ratio ? sprintf("%.3f", ratio) : "null", f[3] ? "true" : "false", f[1],
               rounds, spreads, used, errors > json
        ours = 0
        delete got
        total_wrong += errors
    }
    if (why != "") {
        printf "reno     not run: %s\n", why
        n = split(ranks, rk, " "); k = split(sizes, sz, ",")
        for (i = 1; i <= n; i++) for (j = 1; j <= k; j++)
            printf "%s\n  {\"collective\": \"all_reduce\", \"transport\": \"tcp\", \"ranks\": %d, \"bytes\": %d, " \
                   "\"median_us\": {}, \"best_peer\": null, \"ratio\": null, \"congestion\": \"reno\", \"rounds\": 0, " \
                   "\"not_run\": \"%s\"}", (n_rows++ ? "," : ""), rk[i], sz[j], why > json
    }
    printf "\n]\n" > json
    close(json)
    if (total_wrong) exit 1
}
