//! Manual pages, completions, and `make install`.

use crate::rig::{Rig, is_there, lacks, root};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

/// The commands that `holdfast --help` lists.
fn commands(rig: &Rig) -> Vec<String> {
    let help = rig.run(["--help"]).exits(0).out;
    let (_, list) = help.split_once("Commands:\n").unwrap();
    let lines = list.lines().take_while(|line| line.starts_with("  "));
    let names = lines.filter(|line| !line.starts_with("   ")).filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_string).collect()
}

#[test]
fn every_command_has_a_page_that_man_shows_without_a_warning() {
    let rig = Rig::new();
    let commands = commands(&rig);
    assert!(commands.len() >= 9 && commands.contains(&"check".to_string()), "{commands:?}");
    let written = rig.run(["man", "--out", "pages", "--json"]).exits(0).json();
    let written: BTreeSet<&str> =
        written["pages"].as_array().unwrap().iter().map(|page| page.as_str().unwrap()).collect();
    let on_disk: BTreeSet<String> = fs::read_dir(rig.path("pages"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(on_disk.iter().map(String::as_str).eq(written), "{on_disk:?}");
    assert!(on_disk.contains("holdfast.1"));
    for command in &commands {
        assert!(on_disk.contains(&format!("holdfast-{command}.1")), "{command}");
        let page = rig.run(["man", command]).exits(0).out;
        assert_eq!(page, fs::read_to_string(rig.path("pages").join(format!("holdfast-{command}.1"))).unwrap());
        assert!(page.contains(&format!("\n  holdfast {command}")), "no example: {page}");
    }
    rig.run(["man", "frobnicate"]).exits(2).says("no command `holdfast frobnicate`");
    if !is_there("man") {
        return;
    }
    for page in &on_disk {
        let man = Command::new("man")
            .args(["--warnings=all", "-l"])
            .arg(rig.path("pages").join(page))
            .env("LC_ALL", "C.UTF-8")
            .output()
            .unwrap();
        let (shown, said) = (String::from_utf8_lossy(&man.stdout), String::from_utf8_lossy(&man.stderr));
        assert!(man.status.success() && said.is_empty(), "{page}: {said}");
        for part in ["NAME", "SYNOPSIS", "EXIT STATUS", "SEE ALSO", "Holdfast"] {
            assert!(shown.contains(part), "{page}: {part}: {shown}");
        }
    }
}

#[test]
fn bash_completes_commands_options_and_nothing_hidden() {
    let rig = Rig::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = rig.run(["completions", shell]).exits(0).out;
        assert!(script.contains("holdfast") && script.contains("noatime"), "{script}");
        assert!(!script.contains(|c: char| c.is_control() && !matches!(c, '\n' | '\t')), "printing leaves it as it is");
    }
    rig.run(["completions", "tcsh"]).exits(2);
    if !is_there("bash") {
        return;
    }
    fs::write(rig.path("script"), rig.run(["completions", "bash"]).exits(0).out).unwrap();
    let complete = |words: &str, at: usize| {
        // As complete(1) calls it: command, current word, word before.
        let ask = format!(
            "source ./script; COMP_WORDS=(holdfast {words}); COMP_CWORD={at}; \
             _holdfast holdfast \"${{COMP_WORDS[$COMP_CWORD]}}\" \"${{COMP_WORDS[$COMP_CWORD-1]}}\"; \
             printf '%s\\n' \"${{COMPREPLY[@]}}\""
        );
        let bash = Command::new("bash").args(["-c", &ask]).current_dir(rig.path("")).output().unwrap();
        assert!(bash.status.success(), "{bash:?}");
        String::from_utf8(bash.stdout).unwrap().split_whitespace().map(str::to_string).collect::<Vec<_>>()
    };
    assert_eq!(complete("stat", 1), ["status"]);
    let all = complete("''", 1);
    assert!(commands(&rig).iter().all(|command| all.contains(command)), "{all:?}");
    assert_eq!(complete("mount --fore", 2), ["--foreground"]);
    assert!(!complete("mount --", 2).contains(&"--report-ready".to_string()));
    assert_eq!(complete("mount s m -o ca", 5), ["cache=direct", "cache=kernel", "cache="]);
    let options = complete("mount s m -o ''", 5);
    let help = rig.run(["mount", "--help"]).exits(0).out;
    assert!(options.len() > 20 && options.iter().all(|option| help.contains(&format!("  {option}"))), "{options:?}");
}

#[test]
fn make_install_puts_everything_under_destdir() {
    if !is_there("make") {
        return;
    }
    let rig = Rig::new();
    let root = rig.path("package");
    let make = |target: &str| {
        let make = Command::new("make")
            .arg("--no-print-directory")
            .arg("-C")
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
            .arg(target)
            .arg(concat!("HOLDFAST=", env!("CARGO_BIN_EXE_holdfast")))
            .arg(format!("LIBRARY={}", crate::c_library::library().display()))
            .arg(format!("PRELOAD={}", crate::run::library().display()))
            .arg(format!("DESTDIR={}", root.display()))
            .arg("PREFIX=/opt/holdfast")
            .env_remove("MAKEFLAGS")
            .output()
            .unwrap();
        assert!(make.status.success(), "{}", String::from_utf8_lossy(&make.stderr));
    };
    make("install");
    let at = |path: &str| root.join("opt/holdfast").join(path);
    let version = Command::new(at("bin/holdfast")).arg("--version").output().unwrap();
    assert!(String::from_utf8_lossy(&version.stdout).starts_with("holdfast 0."));
    for (path, part) in [
        ("share/man/man1/holdfast.1", ".TH"),
        ("share/man/man3/holdfast.3", "holdfast_pread"),
        ("include/holdfast.h", "HOLDFAST_ABI_VERSION"),
        ("lib/pkgconfig/holdfast.pc", "prefix=/opt/holdfast\n"),
        ("share/man/man1/holdfast-mount.1", "MOUNT OPTIONS"),
        ("share/bash-completion/completions/holdfast", "complete -F _holdfast"),
        ("share/zsh/site-functions/_holdfast", "#compdef holdfast"),
        ("share/fish/vendor_completions.d/holdfast.fish", "complete -c holdfast"),
        ("lib/systemd/system/holdfast@.service", "ExecStart=/opt/holdfast/bin/holdfast mount --foreground"),
        ("lib/systemd/system/holdfast-scrub@.service", "ExecStart=/opt/holdfast/bin/holdfast scrub"),
        ("lib/systemd/system/holdfast-scrub@.timer", "[Timer]"),
        ("lib/systemd/system/holdfast-flashlog@.service", "ExecStart=/opt/holdfast/bin/holdfast flashlog serve"),
        ("lib/systemd/system/holdfast-flashlog@.socket", "[Socket]"),
        (
            "lib/systemd/system/holdfast-flashlog-backup@.service",
            "ExecStart=/opt/holdfast/bin/holdfast flashlog backup",
        ),
        ("lib/udev/rules.d/90-holdfast-flashlog.rules", "/opt/holdfast/bin/holdfast flashlog status --export"),
        ("lib/systemd/user/holdfast@.service", "ExecStart=/opt/holdfast/bin/holdfast mount --foreground"),
    ] {
        assert!(fs::read_to_string(at(path)).unwrap().contains(part), "{path}");
    }
    // A link that the compiler's linker finds, to the name that the loader looks for.
    assert_eq!(fs::read_link(at("lib/libholdfast.so")).unwrap(), Path::new("libholdfast.so.1"));
    assert!(fs::read(at("lib/libholdfast.so")).unwrap().starts_with(b"\x7fELF"));
    assert!(fs::read(at("lib/libholdfast_preload.so")).unwrap().starts_with(b"\x7fELF"));
    // mount(8) finds the helper, also one that was there before.
    for name in ["mount.holdfast", "mount.fuse.holdfast"] {
        assert_eq!(
            fs::read_link(root.join("sbin").join(name)).unwrap(),
            Path::new("/opt/holdfast/bin/holdfast"),
            "{name}"
        );
    }
    make("install");
    fs::remove_file(root.join("sbin/mount.fuse.holdfast")).unwrap();
    symlink("/usr/bin/another", root.join("sbin/mount.fuse.holdfast")).unwrap();
    make("uninstall");
    fs::remove_file(root.join("sbin/mount.fuse.holdfast")).expect("another's helper is left alone");
    let left =
        |directory: &Path| -> Vec<_> { fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect() };
    let mut directories = vec![root];
    while let Some(directory) = directories.pop() {
        for path in left(&directory) {
            assert!(path.is_dir(), "left over: {}", path.display());
            directories.push(path);
        }
    }
}

/// As one is that a build of the program alone has left from before.
#[test]
fn make_install_refuses_a_library_that_is_older_than_its_sources() {
    if !is_there("make") {
        return;
    }
    let rig = Rig::new();
    let (root, library, source) = (rig.path("package"), rig.path("libholdfast.so"), rig.path("a source.rs"));
    let of = format!("{}: {}\n", library.display(), source.display().to_string().replace(' ', "\\ "));
    fs::write(rig.path("libholdfast.d"), of).unwrap();
    for path in [&library, &source] {
        fs::write(path, "").unwrap();
    }
    let made = fs::metadata(&library).unwrap().modified().unwrap();
    let install = |changed: SystemTime| {
        fs::File::options().write(true).open(&source).unwrap().set_modified(changed).unwrap();
        let mut make = Command::new("make");
        make.args(["--no-print-directory", "-C"]).arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
        make.arg("install").arg(concat!("HOLDFAST=", env!("CARGO_BIN_EXE_holdfast")));
        make.arg(format!("LIBRARY={}", library.display()));
        make.arg(format!("PRELOAD={}", crate::run::library().display()));
        make.arg(format!("DESTDIR={}", root.display())).env_remove("MAKEFLAGS").output().unwrap()
    };
    let refused = install(made + Duration::from_secs(1));
    let said = String::from_utf8_lossy(&refused.stderr);
    let line = format!("{} is older than {}, of which it is made", library.display(), source.display());
    assert!(!refused.status.success() && said.contains(&line) && said.contains("make build"), "{said}");
    assert!(!root.exists(), "nothing was installed");
    let installs = |changed| {
        let installed = install(changed);
        assert!(installed.status.success() && root.exists(), "{}", String::from_utf8_lossy(&installed.stderr));
    };
    installs(made);
    // Of which nobody knows what it is made of: not by Cargo, or carried here.
    fs::remove_file(rig.path("libholdfast.d")).unwrap();
    fs::File::options().write(true).open(&library).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
    installs(made);
}

#[test]
fn systemd_finds_nothing_wrong_with_the_units() {
    if !is_there("systemd-analyze") {
        return;
    }
    let rig = Rig::new();
    let contrib = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/systemd");
    let binary = env!("CARGO_BIN_EXE_holdfast");
    // systemd-analyze looks whether the program is there.
    let verify = |from: &Path, unit: &str, instance: &str, mode: &[&str], change: &dyn Fn(String) -> String| {
        let units = tempfile::tempdir_in(rig.path("")).unwrap();
        // A timer is verified with the service that it starts.
        for entry in fs::read_dir(from).unwrap().map(|entry| entry.unwrap()).filter(|entry| entry.path().is_file()) {
            let text = fs::read_to_string(entry.path()).unwrap().replace("/usr/local/bin/holdfast", binary);
            let text = if entry.file_name() == unit { change(text) } else { text };
            fs::write(units.path().join(entry.file_name()), text).unwrap();
        }
        let verify = Command::new("systemd-analyze")
            .args(mode)
            .args(["verify", "--man=no", instance])
            .current_dir(units.path())
            .env("SYSTEMD_UNIT_PATH", format!("{}:", units.path().display()))
            .env("XDG_RUNTIME_DIR", rig.path(""))
            .output()
            .unwrap();
        (verify.status.success(), String::from_utf8_lossy(&verify.stderr).into_owned())
    };
    let user = contrib.join("user");
    let sections = |text: &str, more: &str| {
        let parts = ["[Service]\n", "[Timer]\n", "[Socket]\n"];
        parts.iter().fold(text.to_string(), |text, part| text.replace(part, &format!("{part}{more}\n")))
    };
    for (from, unit, instance, mode) in [
        (&contrib, "holdfast@.service", r"holdfast@data-my\x2ddisk.store.service", &[][..]),
        (&contrib, "holdfast-scrub@.service", r"holdfast-scrub@data-my\x2ddisk.store.service", &[]),
        (&contrib, "holdfast-scrub@.timer", r"holdfast-scrub@data-my\x2ddisk.store.timer", &[]),
        (&contrib, "holdfast-flashlog@.service", "holdfast-flashlog@laptop.service", &[]),
        (&contrib, "holdfast-flashlog@.socket", "holdfast-flashlog@laptop.socket", &[]),
        (&contrib, "holdfast-flashlog-backup@.service", "holdfast-flashlog-backup@dev-sdz.service", &[]),
        (&user, "holdfast@.service", "holdfast@main.service", &["--user"]),
    ] {
        assert_eq!(verify(from, unit, instance, mode, &|text| text), (true, String::new()), "{unit}");
        let (_, said) = verify(from, unit, instance, mode, &|text| sections(&text, "Sparkle=yes"));
        assert!(said.contains("Sparkle"), "what is wrong with {unit} is not found: {said}");
    }
    let (_, said) = verify(&contrib, "holdfast-scrub@.timer", r"holdfast-scrub@data.timer", &[], &|text| {
        text.replace("OnCalendar=monthly", "OnCalendar=at times")
    });
    assert!(said.contains("at times"), "{said}");
    // A value is a pattern to systemd, in which the backslash of an escaped path means something else.
    let service = fs::read_to_string(contrib.join("holdfast@.service")).unwrap();
    assert!(service.contains("\nEnvironmentFile=/etc/holdfast%f.conf\n"), "{service}");
}

/// The server may come later, or be started again; a wrong command stays one.
#[test]
fn what_may_come_right_is_tried_again_by_the_units_of_a_flashlog() {
    let contrib = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/systemd");
    let rig = Rig::new();
    rig.run(["flashlog", "create", "--main", "m", "--log", "l", "--backup", "b", "--size", "16M"]).exits(0);
    fs::remove_file(rig.path("l")).unwrap();
    for (unit, may, wrong) in [
        ("holdfast-flashlog-backup@.service", &["backup", "--to", "b"][..], &["backup", "--too", "b"][..]),
        ("holdfast-flashlog@.service", &["serve", "--main", "m", "--log", "l"], &["serve", "--main", "m"]),
    ] {
        let text = fs::read_to_string(contrib.join(unit)).unwrap();
        let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::to_string);
        assert_eq!(value("Restart=").as_deref(), Some("on-failure"), "{unit}");
        let never = value("RestartPreventExitStatus=").expect(unit);
        let is_tried_again = |words: &[&str]| {
            let code = rig.run([&["flashlog"], words].concat()).code.unwrap();
            code != 0 && !never.split(' ').any(|never| never == code.to_string())
        };
        assert!(is_tried_again(may) && !is_tried_again(wrong), "{unit}");
    }
}

#[test]
fn the_udev_rules_name_what_there_is() {
    let contrib = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib");
    let path = contrib.join("udev/90-holdfast-flashlog.rules");
    let rules = fs::read_to_string(&path).unwrap();
    // What it calls, with a set's backup, gives what it looks at.
    let rig = Rig::new();
    let create = ["flashlog", "create", "--main", "m", "--log", "l", "--backup", "b", "--size", "16M"];
    rig.run(create).exits(0);
    let (_, call) = rules.split_once("/usr/local/bin/holdfast ").unwrap();
    let words = call.split_once(" $devnode").unwrap().0.split(' ');
    let told = rig.run(words.chain(["b"])).exits(0).out;
    for line in ["HOLDFAST_FLASHLOG_ROLE=backup\n", "HOLDFAST_FLASHLOG_SET="] {
        assert!(told.contains(line) && rules.contains(line.split('=').next().unwrap()), "{told}");
    }
    let unit = rules.split_once("--template=").unwrap().1.split(' ').next().unwrap();
    assert!(contrib.join("systemd").join(unit).exists(), "{unit}");
}

/// By udev itself, which reads them with name spaces of its own for `/run` and `/dev`, so that nothing is left of it.
#[test]
fn udev_understands_the_rules() {
    const PLACES: &str = "mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /dev && mknod /dev/null c 1 3";
    if !is_there("udevadm") || !root("udev reads rules of root only") {
        return;
    }
    // Root of a container, or of a name space of users, may be less.
    let probe = Command::new("unshare").args(["--mount", "sh", "-c", PLACES]).output();
    if !probe.as_ref().is_ok_and(|probe| probe.status.success()) {
        lacks("root", &format!("root may not mount, or make devices: {probe:?}"));
        return;
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/udev/90-holdfast-flashlog.rules");
    let rules = fs::read_to_string(path).unwrap();
    let rig = Rig::new();
    let wrong = |rules: &str| {
        fs::write(rig.path("90-ours.rules"), rules).unwrap();
        let read = "mkdir -p /run/udev/rules.d && cat >/run/udev/rules.d/90-ours.rules \
             && exec udevadm test --action=add /sys/class/mem/null 2>&1";
        let asked = Command::new("unshare")
            .args(["--mount", "sh", "-c", &format!("{PLACES} && {read}")])
            .stdin(fs::File::open(rig.path("90-ours.rules")).unwrap())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&asked.stdout).into_owned();
        assert!(said.contains("/90-ours.rules\n") && said.contains("DEVNAME=/dev/null"), "{asked:?}");
        // What it does by them begins with the device's name.
        said.lines().filter(|line| line.starts_with("/run/udev/rules.d/90-ours.rules:")).count()
    };
    assert_eq!(wrong(&rules), 0);
    // In how many lines it says so is the version's affair.
    assert!(wrong(&rules.replace("ENV{HOLDFAST_FLASHLOG_SET}!=", "ENVY{HOLDFAST_FLASHLOG_SET}!=")) > 0);
    assert!(wrong(&rules.replace("SYMLINK+=", "SYMLINK==+")) > 0);
}
