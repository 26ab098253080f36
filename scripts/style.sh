#!/bin/bash
# The rules of CONTRIBUTING.md that a script can see: width, length, an opening comment, nothing left for later, no
# commented-out assertions, no tabs. Function length is left to the reader. Prints each breach; exit 1 when there is one.
set -u
files=$(find include src transports algorithms gpu tools examples bench tests -name '*.c' -o -name '*.h' | sort)
marks='TO''DO|FIX''ME|XX''X'
rules() {
    awk -v marks="$marks" '
        FNR == 1 && $0 !~ /^\/\*/ { print FILENAME ": does not open with a comment that says what it is" }
        length($0) > 120 { print FILENAME ":" FNR ": " length($0) " columns, 120 are allowed" }
        /\t/ { print FILENAME ":" FNR ": a tab" }
        $0 ~ "(^|[^A-Za-z])(" marks ")([^A-Za-z]|$)" { print FILENAME ":" FNR ": something is left for later" }
        /\/\/ *(cr_)?assert|\/\* *(cr_)?assert[a-z_]*\(/ { print FILENAME ":" FNR ": a commented-out assertion" }
        FNR == 1001 { print FILENAME ": more than 1000 lines" }' "$@"
}
planted=$(mktemp)
printf '\tint x; // assert(x);\n' > "$planted"
found=$(rules "$planted" | wc -l)
rm -f "$planted"
[ "$found" -eq 3 ] || { echo "style: planted breaches were not all found: this check is broken"; exit 1; }
bad=$(rules $files)
[ -z "$bad" ] || { echo "$bad"; # The stand-in for Criterion under ThreadSanitizer has the words that the unit tests use.
plain=tests/plain/criterion/criterion.h
lacking() { comm -23 <(sort -u) <(grep -oE '#define cr_[a-z_]+' $plain | cut -d' ' -f2 | sort -u); }
[ "$(echo cr_assert_planted | lacking)" ] || { echo "style: a planted word was not missed: this check is broken"; exit 1; }
lacks=$(grep -ohE '\bcr_(assert|expect|skip)[a-z_]*\(' tests/unit/*.[ch] | tr -d '(' | lacking)
[ -z "$lacks" ] || { echo "style: $plain lacks what unit tests use:" $lacks; exit 1; }
echo "style: $(echo "$bad" | wc -l) breaches"; exit 1; }
# The stand-in for Criterion under ThreadSanitizer has the words that the unit tests use.
plain=tests/plain/criterion/criterion.h
lacking() { comm -23 <(sort -u) <(grep -oE '#define cr_[a-z_]+' $plain | cut -d' ' -f2 | sort -u); }
[ "$(echo cr_assert_planted | lacking)" ] || { echo "style: a planted word was not missed: this check is broken"; exit 1; }
lacks=$(grep -ohE '\bcr_(assert|expect|skip)[a-z_]*\(' tests/unit/*.[ch] | tr -d '(' | lacking)
[ -z "$lacks" ] || { echo "style: $plain lacks what unit tests use:" $lacks; exit 1; }
echo "style: $(echo "$files" | wc -l) files keep the rules that a script can see"
