//! Remounts between `ro` and `rw` where something is in the way: the scrub, which keeps a record of its own; a store that can be opened no more.

use crate::mount8::{in_a_namespace, mount_8};
use std::fs;

/// As with a home directory in the store: the record of the scrub is in a directory that the mount covers.
#[test]
fn a_remount_waits_for_no_record_of_a_scrub_in_the_mount_itself() {
    for options in ["", ",threads=1"] {
        let Some(rig) = mount_8() else { return };
        in_a_namespace(
            &rig,
            &r#"
            export XDG_STATE_HOME=$DIR/state
            in_time() { timeout 30 "$@" || { kill -9 "$pid"; echo "hangs: $*" >&2; exit 9; }; }
            mount -t holdfast -o nonemptyOPTIONS "$STORE" "$DIR"
            pid=$(daemon "$DIR")
            mkdir -p "$DIR/state/holdfast"
            dd if=/dev/urandom of="$DIR/f" bs=1M count=6 status=none
            # It goes on for all of the test.
            in_time "$HOLDFAST" scrub --rate 64K "$DIR"
            for round in 1 2; do
                in_time mount -o remount,ro "$DIR"
                in_time mount -o remount,rw "$DIR"
            done
            "$HOLDFAST" scrub --status --json "$DIR" | grep '"condition": "running"'
            cmp <(head -c 6M "$DIR/f") "$DIR/f"
            [ -z "$(ls "$DIR/state/holdfast")" ]
            in_time "$HOLDFAST" unmount "$DIR"

            # The next mount goes on with it.
            mount -t holdfast -o nonemptyOPTIONS "$STORE" "$DIR"
            "$HOLDFAST" scrub --status --json "$DIR" | grep '"condition": "running"'
            "$HOLDFAST" unmount "$DIR"
            "#
            .replace("OPTIONS", options),
        );
        rig.run(["check", "s"]).exits(0);
    }
}

/// What was read before would be blocks of other files by now, had the replay got on.
#[test]
fn a_mount_whose_store_can_be_opened_no_more_shows_nothing() {
    let Some(rig) = mount_8() else { return };
    let store = rig.path("s");
    fs::write(rig.path("zeros"), vec![0; 16 << 20]).unwrap();
    in_a_namespace(
        &rig,
        r#"
        one_and_a_snapshot
        exec 4<"$DIR/f"
        here=$PWD
        mkfifo go
        (cd "$DIR/.holdfast/snapshots/first" && read -r _ <"$here/go" && ls 2>"$here/listed" || true) &
        lister=$!
        trap 'kill "$lister" 2>&- || true' EXIT
        [ "$(cat "$DIR/f")" = one ]

        dd if=zeros of="$STORE" conv=notrunc status=none
        fails mount -o remount,rw "$DIR"
        grep 'could not be opened again for reading only' err
        fails cat "$DIR/f"
        grep 'Input/output error' err
        fails cat <&4
        grep 'Input/output error' err
        "$HOLDFAST" status "$DIR" | grep 'READ-ONLY.*could not be opened again: unmount it, and mount it again'
        for request in "snapshot list" scrub sync trim; do
            fails "$HOLDFAST" $request "$DIR"
        done
        fails "$HOLDFAST" grow "$DIR" +1M
        # Its own directory is one that it need not look up.
        echo >go
        wait "$lister"
        grep "cannot open directory '.': Input/output error" listed
        fails mount -o remount,rw "$DIR"
        grep 'could not be opened again: unmount it' err
        exec 4<&-
        "$HOLDFAST" unmount "$DIR"
        "#,
    );
    assert!(fs::read(store).unwrap().iter().all(|byte| *byte == 0), "nothing is written to it");
}
