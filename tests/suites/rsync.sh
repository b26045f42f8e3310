#!/usr/bin/env bash
# rsync of a large tree with checksums: a second run transfers nothing, also after a remount, and changed, new and removed files
# are followed. The sums of all files are compared with the source besides.
# TREES lists the sources.
. "$(dirname "$0")/lib.sh"
# shellcheck disable=SC2046
install_packages $(packages_for rsync) || exit 1
become_root "$@"
suite_begin rsync

read -r -a trees <<<"${TREES:-/usr/include}"
# The files' own times of access are no part of the comparison; hard links and extended attributes are.
copy() { bounded "${LIMIT:-900}" rsync --archive --hard-links --xattrs --checksum --delete --itemize-changes "$@"; }
# Whatever the second run names it would have transferred or changed.
nothing_to_do() { local out; out=$(copy "$@") && [ -z "$out" ] || { printf '%s\n' "$out" | head -n 10; return 1; }; }
# sums DIR: of every file below it, in a stable order.
sums() { (cd "$1" && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 -r sha256sum); }

fs_create
fs_mount
for tree in "${trees[@]}"; do
    [ -d "$tree" ] || die "there is no $tree"
    name=${tree//\//_}
    start=$SECONDS
    check "$tree: copied" copy "$tree/" "$MNT/$name/"
    say "$tree: $(find "$MNT/$name" -type f | wc -l) files, $(du -s --apparent-size -BM "$MNT/$name" | cut -f1), $((SECONDS - start)) s"
    check "$tree: a second rsync transfers nothing" nothing_to_do "$tree/" "$MNT/$name/"
    sums "$tree" >"$WORK/source$name"
done
fs_remount
for tree in "${trees[@]}"; do
    name=${tree//\//_}
    sums "$MNT/$name" >"$WORK/copied$name"
    check "$tree: same sums after a remount" cmp "$WORK/source$name" "$WORK/copied$name"
    check "$tree: rsync transfers nothing after a remount" nothing_to_do "$tree/" "$MNT/$name/"
done
# A copy of the copy, which is then changed behind its back: rsync must find exactly these.
name=${trees[0]//\//_}
check "a copy within the mount" copy "$MNT/$name/" "$MNT/second/"
mapfile -t files < <(cd "$MNT/second" && find . -type f -size +1k | LC_ALL=C sort | awk 'NR % 97 == 5' | head -n 50)
for file in "${files[@]}"; do
    # Same size, same time: only the checksum tells.
    touch -r "$MNT/second/$file" "$WORK/time"
    printf '\377\376' | dd of="$MNT/second/$file" bs=1 seek=700 conv=notrunc status=none
    touch -r "$WORK/time" "$MNT/second/$file"
done
found=$(copy --dry-run "$MNT/$name/" "$MNT/second/" | grep -c '^>fc')
[ "$found" = ${#files[@]} ] && [ "$found" != 0 ] && pass "each of $found changed files is found" || fail "$found of ${#files[@]} changed files were found"
check "they are put right" copy "$MNT/$name/" "$MNT/second/"
check "and nothing is left to do" nothing_to_do "$MNT/$name/" "$MNT/second/"
fs_unmount
check "store is clean" fs_check
suite_end
