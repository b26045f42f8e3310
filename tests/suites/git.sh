#!/usr/bin/env bash
# git on the mount: commits, branches, merge, gc, fsck, clones with and without hard links, all again after a remount.
. "$(dirname "$0")/lib.sh"
# shellcheck disable=SC2046
install_packages $(packages_for git) || exit 1
become_root "$@"
suite_begin git

export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null
export GIT_AUTHOR_NAME=suite GIT_AUTHOR_EMAIL=suite@localhost GIT_COMMITTER_NAME=suite GIT_COMMITTER_EMAIL=suite@localhost
g() { bounded 120 git -c core.fsync=all -c init.defaultBranch=main -C "$1" "${@:2}"; }

fs_create
fs_mount
repo=$MNT/repo
mkdir "$repo"
check "init" g "$repo" init -q
cp -r /usr/include/linux "$repo/linux"           # some 750 real files, from libc6-dev
check "first commit" bash -c "$(declare -f g); g '$repo' add -A && g '$repo' commit -q -m first"
for i in $(seq 15); do
    find "$repo/linux" -name "*.h" | sort | awk -v i="$i" 'NR % 15 == i % 15' | xargs -d '\n' sed -i "1i /* change $i */"
    g "$repo" mv "linux/$(cd "$repo/linux" && find . -maxdepth 1 -name '*.h' | sort | sed -n "$((i * 3))p")" "linux/renamed-$i.h"
    g "$repo" commit -q -a -m "change $i" || fail "commit $i"
done
[ "$(g "$repo" rev-list --count HEAD)" = 16 ] && pass "16 commits" || fail "16 commits expected"
check "branch and merge" bash -c "$(declare -f g)
    g '$repo' checkout -q -b side HEAD~5 && echo side >'$repo/side' && g '$repo' add side && g '$repo' commit -q -m side &&
    g '$repo' checkout -q main && g '$repo' merge -q -m merge side"
check "tag and stash" bash -c "$(declare -f g)
    g '$repo' tag -a -m tag v1 && echo change >>'$repo/side' && g '$repo' stash -q && g '$repo' stash pop -q && g '$repo' checkout -q side -- . && g '$repo' reset -q --hard"
check "fsck of loose objects" g "$repo" fsck --full --strict
check "gc" g "$repo" gc -q --prune=now
check "fsck of packs" g "$repo" fsck --full --strict
[ -z "$(g "$repo" status --porcelain)" ] && pass "work tree unchanged" || fail "work tree changed by gc"
check "clone with hard links" g "$MNT" clone -q repo linked
check "clone with copies" g "$MNT" clone -q --no-hardlinks repo copied
check "worktree" g "$repo" worktree add -q "$MNT/tree" HEAD~3
pack=$(cd "$repo" && ls .git/objects/pack/*.pack)
[ "$(stat -c %h "$MNT/linked/$pack")" -ge 2 ] && pass "the linked clone shares the pack" || fail "the linked clone does not share the pack"
for copy in linked copied; do
    check "$copy: same tree" diff -r --exclude=.git "$repo" "$MNT/$copy"
done
manifest "$MNT" >"$WORK/before"
fs_remount
manifest "$MNT" >"$WORK/after"
check "same files, attributes and times after a remount" diff "$WORK/before" "$WORK/after"
for copy in repo linked copied; do
    check "$copy: fsck after a remount" g "$MNT/$copy" fsck --full --strict
    [ -z "$(g "$MNT/$copy" status --porcelain)" ] && pass "$copy: clean" || fail "$copy: work tree changed by the remount"
done
check "removing all of it" rm -r "$MNT/repo" "$MNT/linked" "$MNT/copied" "$MNT/tree"
fs_unmount
check "store is clean" fs_check
suite_end
