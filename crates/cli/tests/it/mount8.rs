//! As users of mount(8) know it: its options, the helper under its name, umount(8).

use crate::rig::{PATIENCE, Rig, await_end, fuse, kill, root};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};

/// Runs a script in a mount namespace of its own, in which mount(8) finds the helper: it looks in /sbin and its like only. What is
/// mounted there ends with its daemon, not with the script. Gives what was printed.
pub(crate) fn in_a_namespace(rig: &Rig, script: &str) -> (String, String) {
    let helper = rig.path("mount.holdfast");
    symlink(env!("CARGO_BIN_EXE_holdfast"), &helper).unwrap();
    let prepared = r#"
        set -eE
        sbin=$(mktemp -d) && cp -a "$HELPER" "$sbin/" && ln -s mount.holdfast "$sbin/mount.fuse.holdfast"
        mount --make-rprivate / && mount --bind "$sbin" /sbin
        trap 'echo "line $LINENO failed: $BASH_COMMAND" >&2' ERR
        daemon() { "$HOLDFAST" status --json "$1" | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p'; }
        fails() { ! "$@" 2>err || { echo "should fail: $*" >&2; exit 9; }; }
        # A file `f` and a snapshot `first` of it, mounted read-only.
        one_and_a_snapshot() {
            mount -t holdfast "$STORE" "$DIR"
            echo one >"$DIR/f"
            "$HOLDFAST" snapshot create "$DIR" first
            "$HOLDFAST" unmount "$DIR"
            mount -t holdfast -o ro "$STORE" "$DIR"
        }
    "#;
    let run = Command::new("unshare")
        .args(["--mount", "bash", "-c", &format!("{prepared}{script}")])
        .current_dir(rig.path(""))
        .env("HELPER", &helper)
        .env("HOLDFAST", env!("CARGO_BIN_EXE_holdfast"))
        .env("HOME", rig.path("home"))
        .env("STORE", rig.path("s"))
        .env("DIR", rig.path("m"))
        .output()
        .unwrap();
    let (out, err) =
        (String::from_utf8_lossy(&run.stdout).into_owned(), String::from_utf8_lossy(&run.stderr).into_owned());
    assert!(run.status.success(), "{out}\n{err}");
    (out, err)
}

/// A store `s` and a directory `m` for it, if mount(8) can be tried here.
pub(crate) fn mount_8() -> Option<Rig> {
    (root("mount(8) needs root") && fuse()).then(|| {
        let rig = Rig::new();
        rig.store("s", "16M");
        rig.directory("m");
        rig
    })
}

#[test]
fn mount_8_finds_the_helper_and_umount_8_leaves_a_clean_store() {
    let Some(rig) = mount_8() else { return };
    let mount = rig.path("m");
    let (out, err) = in_a_namespace(
        &rig,
        r#"
        # Again at once, while the daemon of the last mount is still writing.
        for round in 1 2 3 4 5; do
            mount -t holdfast -o epoch=60000 "$STORE" "$DIR" 2>err
            [ ! -s err ]
            dd if=/dev/zero of="$DIR/round" bs=1M count=4 status=none
            umount -i "$DIR"
        done
        mount -t holdfast -o noatime,nosuid,x-mine "$STORE" "$DIR"
        grep " $DIR rw,nosuid,noatime - fuse.holdfast $STORE" /proc/self/mountinfo
        echo content >"$DIR/f"
        echo "pid=$(daemon "$DIR")"
        umount -i "$DIR"
        ! mount -t holdfast -o sparkle "$STORE" "$DIR" || exit 9
        "#,
    );
    assert!(err.contains("mount option \"sparkle\" is not known"), "{err}");
    let pid =
        out.lines().find_map(|line| line.strip_prefix("pid=")).and_then(|pid| pid.parse().ok()).expect("a daemon");
    // umount(8) returns before the daemon has written the rest.
    await_end(pid);
    assert_eq!(rig.run(["status", "s", "--json"]).exits(0).json()["condition"], "clean");
    rig.run(["mount", "s", "m"]).exits(0);
    assert_eq!(fs::read_to_string(mount.join("f")).unwrap(), "content\n");
    rig.run(["unmount", "m"]).exits(0);
}

#[test]
fn a_remount_changes_what_can_be_changed_and_refuses_the_rest() {
    let Some(rig) = mount_8() else { return };
    in_a_namespace(
        &rig,
        r#"
        fails mount -t holdfast -o remount,ro "$STORE" "$DIR"
        grep 'nothing to remount' err
        mount -t holdfast -o cache=64M "$STORE" "$DIR"
        echo one >"$DIR/f"
        touch -a -d @1000 "$DIR/f"

        exec 3>"$DIR/open"
        fails mount -o remount,ro "$DIR"
        grep 'something in it is open for writing' err
        exec 3>&-
        mount -o remount,ro "$DIR"
        grep " $DIR ro,relatime - fuse.holdfast $STORE ro," /proc/self/mountinfo
        "$HOLDFAST" status --json "$DIR" | grep '"options": "ro,cache=67108864"'
        # Everything was written at once.
        "$HOLDFAST" status --json "$DIR" | grep '"dirty_bytes": 0,'
        fails sh -c 'echo two >"$DIR/f"'
        fails "$HOLDFAST" snapshot create "$DIR" monday
        grep 'mounted read-only' err
        [ "$(cat "$DIR/f")" = one ] && [ "$(stat -c %X "$DIR/f")" = 1000 ]

        mount -o remount,rw,noatime,nosuid "$DIR"
        grep " $DIR rw,nosuid,noatime - fuse.holdfast $STORE rw," /proc/self/mountinfo
        echo two >>"$DIR/g"
        [ "$(cat "$DIR/f")" = one ] && [ "$(stat -c %X "$DIR/f")" = 1000 ]
        "$HOLDFAST" mount -o remount,relatime "$STORE" "$DIR"
        grep " $DIR rw,nosuid,relatime - fuse.holdfast $STORE rw," /proc/self/mountinfo
        [ "$(cat "$DIR/f")" = one ] && [ "$(stat -c %X "$DIR/f")" != 1000 ]

        fails mount -o remount,cache=128M "$DIR"
        grep 'the size of the cache cannot be changed by a remount' err
        fails mount -o remount,allow_other "$DIR"
        "$HOLDFAST" status --json "$DIR" | grep '"options": "rw,nosuid,cache=67108864"'
        "$HOLDFAST" unmount "$DIR"

        "#,
    );
    rig.run(["check", "s"]).exits(0);
}

#[test]
fn a_remount_opens_the_store_for_writing_and_closes_it_in_order() {
    let Some(rig) = mount_8() else { return };
    in_a_namespace(
        &rig,
        r#"
        one_and_a_snapshot
        sum=$(sha256sum "$STORE")
        # Of this the kernel tells nobody: the daemon keeps the store as it is.
        mount -i -o remount,rw "$DIR"
        fails sh -c 'echo three >"$DIR/g"'
        grep 'Read-only file system' err
        [ "$(sha256sum "$STORE")" = "$sum" ]

        exec 4<"$DIR/f" 5<"$DIR/.holdfast/snapshots/first/f"
        mount -o remount,rw "$DIR"
        grep " $DIR rw,relatime - fuse.holdfast $STORE rw," /proc/self/mountinfo
        "$HOLDFAST" status --json "$DIR" | grep '"options": "rw"'
        echo three >"$DIR/g"
        # What is open is that over the remount, and stays while it has no name.
        rm "$DIR/f"
        "$HOLDFAST" sync "$DIR"
        [ "$(cat <&4)" = one ] && [ "$(cat <&5)" = one ]
        exec 4<&- 5<&-
        "$HOLDFAST" snapshot create "$DIR" second

        exec 3>"$DIR/open"
        fails mount -o remount,ro "$DIR"
        grep 'something in it is open for writing' err
        exec 3>&-
        "$HOLDFAST" scrub "$DIR"
        echo four >"$DIR/h"
        # There and back at once, with readers in between.
        (for i in $(seq 300); do cat "$DIR/g" "$DIR/h"; done >read 2>&1) &
        for round in 1 2 3; do
            mount -o remount,ro "$DIR"
            fails sh -c 'echo five >>"$DIR/h"'
            mount -o remount,rw "$DIR"
            echo five >>"$DIR/h"
        done
        wait $!
        [ "$(grep -c three read)" = 300 ] && ! grep -v '^three$\|^four$\|^five$' read
        [ "$(tr '
' ' ' <"$DIR/h")" = 'four five five five ' ]
        mount -o remount,ro "$DIR"
        # Somebody pulls the plug.
        kill -9 $(daemon "$DIR")
        umount -i -l "$DIR"
        "#,
    );
    rig.run(["check", "s"]).exits(0);
    assert_eq!(rig.run(["status", "s", "--json"]).exits(0).json()["condition"], "clean");
}

#[test]
fn a_remount_for_writing_replays_what_a_crash_left() {
    for options in ["", ",cache=kernel", ",threads=1"] {
        let Some(rig) = mount_8() else { return };
        in_a_namespace(
            &rig,
            &r#"
            mount -t holdfast -o epoch=60000OPTIONS "$STORE" "$DIR"
            echo one >"$DIR/f"
            echo gone >"$DIR/gone"
            "$HOLDFAST" sync "$DIR"
            echo two, longer >"$DIR/f"
            rm "$DIR/gone"
            echo three >"$DIR/g"
            sync "$DIR/f" "$DIR/g"
            kill -9 $(daemon "$DIR")
            umount -i -l "$DIR"

            mount -t holdfast -o roOPTIONS "$STORE" "$DIR"
            exec 4<"$DIR/f"
            [ "$(cat "$DIR/f" "$DIR/gone")" = "$(printf 'one
gone
')" ]
            fails ls "$DIR/g"
            if [[ "OPTIONS" = *kernel ]]; then
                fails mount -o remount,rw "$DIR"
                grep 'files are open' err
                fails sh -c 'echo four >"$DIR/gone"'
                exec 4<<<'two, longer'
            fi
            mount -o remount,rw "$DIR"
            [ "$(cat "$DIR/f" "$DIR/g")" = "$(printf 'two, longer
three
')" ]
            fails ls "$DIR/gone"
            [ "$(cat <&4)" = 'two, longer' ]
            exec 4<&-
            echo four >"$DIR/gone"
            "$HOLDFAST" unmount "$DIR"
            "#
            .replace("OPTIONS", options),
        );
        rig.run(["check", "s"]).exits(0);
    }
}

/// The first half of the labels gets the recovery point that has the log, the second one fails: a file size limit makes the kernel refuse
/// writes beyond it, as a broken host would.
#[test]
fn what_a_refused_remount_has_replayed_is_seen_at_once() {
    if mount_8().is_none() {
        return;
    }
    let rig = Rig::new();
    // Larger than the page pool, for which the limit is as well.
    rig.store("s", "256M");
    rig.directory("m");
    in_a_namespace(
        &rig,
        r#"
        mount -t holdfast -o epoch=60000,cache=32M "$STORE" "$DIR"
        echo gone >"$DIR/gone"
        "$HOLDFAST" sync "$DIR"
        rm "$DIR/gone"
        echo late >"$DIR/late"
        sync "$DIR/late"
        kill -9 $(daemon "$DIR")
        umount -i -l "$DIR"

        # The signal that comes with the error would end the daemon.
        (trap '' XFSZ; mount -t holdfast -o ro,cache=32M "$STORE" "$DIR")
        [ "$(cat "$DIR/gone")" = gone ]
        fails cat "$DIR/late"
        prlimit --pid $(daemon "$DIR") --fsize=$((255 << 20)):unlimited
        fails mount -o remount,rw "$DIR"
        grep 'write failed at block' err
        prlimit --pid $(daemon "$DIR") --fsize=unlimited:unlimited
        # Not by listing the directory, by which the kernel would learn of it.
        [ "$(cat "$DIR/late")" = late ]
        fails cat "$DIR/gone"
        fails sh -c 'echo x >"$DIR/late"'
        "$HOLDFAST" unmount "$DIR"
        "#,
    );
}

#[test]
fn what_the_kernel_sees_to_is_in_the_table_of_mounts() {
    let Some(rig) = mount_8() else { return };
    in_a_namespace(
        &rig,
        r#"
        # A time in the future is newer than any change, so relatime leaves it alone.
        read_once() {
            touch -a -d @4000000000 "$DIR/f"
            cat "$DIR/f"
            stat -c %X "$DIR/f"
        }
        shown() { grep " $DIR $1 - fuse.holdfast " /proc/self/mountinfo; }
        mount -t holdfast -o strictatime,nosymfollow "$STORE" "$DIR"
        shown rw,nosymfollow
        echo content >"$DIR/f"
        ln -s f "$DIR/l"
        [ "$(read_once | tail -n 1)" -lt 4000000000 ]
        fails cat "$DIR/l"
        grep 'Too many levels of symbolic links' err
        mount -o remount,nosuid "$DIR"
        shown rw,nosuid,nosymfollow
        [ "$(read_once | tail -n 1)" -lt 4000000000 ]
        mount -o remount,relatime,symfollow "$DIR"
        shown rw,nosuid,relatime
        cat "$DIR/l"
        [ "$(read_once | tail -n 1)" = 4000000000 ]
        mount -o remount,strictatime,nosymfollow "$DIR"
        shown rw,nosuid,nosymfollow
        fails cat "$DIR/l"
        [ "$(read_once | tail -n 1)" -lt 4000000000 ]
        fails mount -o remount,dirsync "$DIR"
        # As the kernel has it: nodiratime alone means relatime besides.
        mount -o remount,nodev,noexec,nodiratime "$DIR"
        shown rw,nosuid,nodev,noexec,nodiratime,relatime,nosymfollow
        "$HOLDFAST" unmount "$DIR"
        "#,
    );
}

#[test]
fn lines_of_fstab_are_mounted_and_shown_as_others_are() {
    let Some(rig) = mount_8() else { return };
    rig.store("t", "16M");
    rig.directory("n");
    let (out, _) = in_a_namespace(
        &rig,
        r#"
        cat >fstab <<END
$STORE $DIR holdfast noauto,user,exec,noatime,x-systemd.automount,x-systemd.requires-mounts-for=$PWD 0 0
$PWD/t $PWD/n holdfast defaults,lazytime,norelatime,nostrictatime,iversion,loud,nomand,allow_other,nofail,_netdev,x-systemd.device-timeout=5s 0 0
$PWD/absent $PWD/m holdfast nofail 0 0
END
        mount -a -T fstab
        fails mountpoint -q "$DIR"
        mountpoint -q n
        mount -a -T fstab   # what is mounted already is left alone
        [ "$(grep -c " $PWD/n " /proc/self/mountinfo)" = 1 ]
        mount -T fstab "$DIR"
        [ "$(findmnt -n -o SOURCE,FSTYPE,VFS-OPTIONS "$DIR")" = "$STORE fuse.holdfast rw,nosuid,nodev,noatime" ]
        [ "$(df --output=source,fstype "$DIR" | tail -n 1)" = "$STORE fuse.holdfast" ]
        mount | grep "^$PWD/t on $PWD/n type fuse.holdfast (rw,.*allow_other"
        findmnt -n -t fuse.holdfast "$DIR"
        echo content >"$DIR/f"
        echo "pid=$(daemon "$DIR")"
        echo "pid=$(daemon n)"
        umount "$DIR"
        umount n
        "#,
    );
    for line in out.lines().filter_map(|line| line.strip_prefix("pid=")) {
        let pid = line.parse().unwrap();
        await_end(pid);
    }
    rig.run(["check", "s"]).exits(0);
    rig.run(["check", "t"]).exits(0);
}

#[test]
fn a_service_manager_is_told() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    rig.store("s", "16M");
    let mount = rig.directory("m");
    let manager = UnixDatagram::bind(rig.path("notify")).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let told = || {
        let mut bytes = [0; 1000];
        let length = loop {
            match manager.recv(&mut bytes) {
                // A child that ended.
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                received => break received.unwrap(),
            }
        };
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    };
    let mut service = rig.command();
    service.args(["mount", "s", "m", "--foreground"]).env("NOTIFY_SOCKET", rig.path("notify"));
    let mut service = service.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let ready = told();
    assert!(ready.starts_with("READY=1\nSTATUS=") && ready.contains(mount.to_str().unwrap()), "{ready:?}");
    fs::write(mount.join("f"), "content").unwrap();
    kill(i32::try_from(service.id()).unwrap(), Signal::TERM);
    assert!(told().starts_with("STOPPING=1\n"));
    assert!(service.wait().unwrap().success());
}

#[test]
fn arguments_in_the_wrong_order_are_recognised() {
    let rig = Rig::new();
    rig.store("s", "4M");
    rig.directory("m");
    let swapped = rig.run(["mount", "m", "s"]).exits(2).says("the store comes first");
    assert!(swapped.err.contains("holdfast mount s m"), "{swapped:?}");
}

#[test]
fn who_unmounts_from_within_is_not_in_its_own_way() {
    if !fuse() {
        return;
    }
    let rig = Rig::new();
    let mount = rig.mounted("");
    let ran = rig.command().args(["unmount", "."]).current_dir(&mount).output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
    rig.run(["check", "s"]).exits(0);
}
