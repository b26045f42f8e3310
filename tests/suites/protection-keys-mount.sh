#!/bin/sh
# Works with a mount whose metadata is locked with protection keys, in an empty directory: four writers, a snapshot, a scrub, the end of the
# daemon, recovery. Part of protection-keys.sh.
set -eu

locked() { holdfast status m | grep 'pages locked with protection keys'; }

holdfast create s --size 256M
mkdir m
holdfast mount s m -o protect=keys,threads=4,epoch=100
locked
for writer in a b c d; do
    (
        mkdir "m/$writer"
        number=0
        while [ "$number" -lt 60 ]; do
            dd if=/dev/urandom of="m/$writer/$number" bs=3k count="$number" 2>/dev/null
            number=$((number + 1))
        done
        rm "m/$writer"/1*
    ) &
done
wait
holdfast snapshot create m one
rm -r m/a
holdfast sync m
holdfast scrub m --wait
holdfast snapshot delete m one
md5sum m/*/* >sums
holdfast sync m
kill -9 "$(pidof holdfast)"
holdfast unmount m
# Keys are the default where there are any.
holdfast mount s m
locked
md5sum m/*/* | cmp - sums
cat .local/state/holdfast/*.log >log
if grep 'no direct I/O' log; then exit 1; fi
holdfast unmount m
holdfast check s
