#!/usr/bin/env python3
"""Takes the checksum or the digest out of each way to change metadata, one at a time, and expects a test to fail.

Usage: mutants.py DIRECTORY [NAME...]

DIRECTORY gets a copy of the sources and what is built of it, which stays for the next time. A mutant replaces one place of one file; where the
place is not there just once any more, this fails and is to be brought up to date. Tests are those of the mutant's crate, and where
these pass those of the lab that strike metadata. Each line says which tests saw it. The last line counts mutants that were seen
as passed.
"""
import os, re, shutil, subprocess, sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PHYSICAL, NAMING = "physical", "naming"
OWNED = "crates/physical/src/meta_block/owned.rs"
WORDS = "crates/physical/src/words.rs"
ROLLED = "crates/naming/src/rolled.rs"
AUDIT = "crates/physical/src/audit/mod.rs"
# Each test ends within seconds; a mutant may wait for what never comes.
TEST_S = 600

# Name, crate, file, what is there, what comes in its place.
MUTANTS = [
    ("digest of a pointer", PHYSICAL, OWNED, "self.count(|changes, bytes| changes.pointer(&bytes.as_chunks().0[slot], &new));", ""),
    ("digest of a record", PHYSICAL, OWNED, "self.count(|changes, bytes| changes.record(slot, &bytes.as_chunks().0[slot], record));", ""),
    ("digest of a counter of references", PHYSICAL, OWNED, "self.count(|changes, _| changes.counter(slot, old, value));", ""),
    ("digest of a snapshot", PHYSICAL, OWNED, "self.count(|changes, bytes| changes.snapshot(slot, &bytes.as_chunks().0[slot], snapshot));", ""),
    ("digest of a dead run", PHYSICAL, OWNED, "self.count(|changes, bytes| changes.dead_run(&bytes.as_chunks().0[slot], run));", ""),
    ("digest of bits", PHYSICAL, OWNED, "self.count(|changes, _| changes.word(word, old, value));", ""),
    ("checksum of a pointer", PHYSICAL, OWNED, "Delta::of_slot(slot, block.slot::<POINTER_BYTES>(slot), &new)", "{ let _ = block; Delta::NONE }"),
    ("checksum of a counter of references", PHYSICAL, OWNED, "Delta::of_word(word, before, before ^ u64::from(block.counter(slot) ^ value) << shift)", "{ let _ = (before, shift); Delta::NONE }"),
    ("checksum of bits", PHYSICAL, OWNED, "Delta::of_word(word, block.word(word), value)", "{ let _ = block; Delta::NONE }"),
    ("checksum of a range", PHYSICAL, OWNED, "Delta::of(at, &block.bytes.0[at..at + bytes.len()], bytes)", "{ let _ = block; Delta::NONE }"),
    ("hook of all blocks", PHYSICAL, "crates/physical/src/meta_block.rs", "delta(self).apply(&mut self.sums.sum, &mut self.sums.tally);", "let _ = delta;"),
    ("checksum of the allocator's words", PHYSICAL, WORDS, "Delta::of_word(at, *word, value).apply(&mut self.crc, &mut self.tally);", "let _ = at;"),
    ("sum of bits that a mask gets", PHYSICAL, WORDS, "chunk.sum.set((block % BITS) as usize);", ""),
    ("sum of bits that a mask loses", PHYSICAL, WORDS, "chunk.sum.clear((block % BITS) as usize);", ""),
    ("sum of words that a mask gets", PHYSICAL, WORDS, "(0..64).filter(|bit| new >> bit & 1 == 1).for_each(|bit| chunk.sum.set(at * 64 + bit));", "let _ = at;"),
    ("checksum of a page of names", NAMING, ROLLED, "self.crc64 ^= delta.crc64;", ""),
    ("second sum of a page of names", NAMING, ROLLED, "self.seal = self.seal.changed(delta.tally);", ""),
]
# Of the audit, what is told of by others than the blocks that change.
TOLD = ["dropped", "dead_page_cut", "shared", "unshared", "buried", "exhumed", "generations_given", "newest_snapshot_is", "not_freed",
        "map_differs", "page_gone", "pages_left", "object_gone", "metadata_gone", "kept_gone", "complete", "bounded"]


def told():
    """The audit's methods, each of which is to be without effect."""
    text = read(AUDIT)
    for name in TOLD:
        found = re.findall(r"    pub\(crate\) fn " + name + r"\((?:[^()]|\([^()]*\))*\) \{\n", text)
        if len(found) != 1:
            sys.exit(f"mutants: {AUDIT} has {len(found)} methods {name}")
        yield (f"audit: {name}", PHYSICAL, AUDIT, found[0], found[0] + "        if true {\n            return;\n        }\n")


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def copy_sources(tree):
    """Files that have not changed keep their times, so that little is built again."""
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"], capture_output=True, check=True)
    names = {name.decode() for name in listed.stdout.split(b"\0") if name}
    for name in sorted(names):
        source, target = os.path.join(ROOT, name), os.path.join(tree, name)
        if not os.path.exists(source):
            continue
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if not os.path.exists(target) or open(source, "rb").read() != open(target, "rb").read():
            shutil.copyfile(source, target)


def cargo(tree, *arguments):
    environment = dict(os.environ, CARGO_TARGET_DIR=os.path.join(os.path.dirname(tree), "target"), CARGO_INCREMENTAL="0")
    try:
        done = subprocess.run(["cargo", "test", *arguments], cwd=tree, env=environment, capture_output=True, timeout=TEST_S)
    except subprocess.TimeoutExpired:
        return 1, "test it ends ... FAILED\n"
    return done.returncode, (done.stdout + done.stderr).decode(errors="replace")


def seen(tree, crate):
    """Tests that fail; none if all pass."""
    lab = [["-p", "holdfast-lab", "--test", "it", "--", "metadata", "explorer", "torture"]]
    for tests in [["-p", f"holdfast-{crate}", "--lib"], ["-p", f"holdfast-{crate}", "--test", "it"]] + lab:
        at = tests.index("--") if "--" in tests else len(tests)
        status, said = cargo(tree, "--no-run", *tests[:at])
        if status:
            sys.exit(f"mutants: cannot be built:\n{said[-4000:]}")
        status, said = cargo(tree, *tests)
        if status:
            return re.findall(r"^test (.*) \.\.\. FAILED$", said, re.MULTILINE) or ["a test ended the process"]
    return []


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    work, only = os.path.abspath(sys.argv[1]), sys.argv[2:]
    mutants = [mutant for mutant in MUTANTS + list(told()) if not only or mutant[0] in only]
    if len(mutants) < len(only):
        sys.exit(f"mutants: these are: {', '.join(name for name, *_ in MUTANTS + list(told()))}")
    tree, caught = os.path.join(work, "tree"), 0
    copy_sources(tree)
    for crate in sorted({crate for _, crate, *_ in mutants}):
        if failed := seen(tree, crate):
            sys.exit(f"mutants: without any these tests fail: {', '.join(failed)}")
    for name, crate, path, there, instead in mutants:
        sound = read(path)
        if sound.count(there) != 1:
            sys.exit(f"mutants: {path} has {sound.count(there)} times: {there}")
        target = os.path.join(tree, path)
        with open(target, "w", encoding="utf-8") as file:
            file.write(sound.replace(there, instead))
        try:
            failed = seen(tree, crate)
        finally:
            with open(target, "w", encoding="utf-8") as file:
                file.write(sound)
        caught += bool(failed)
        more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
        print(f"{name}: seen by {failed[0]}{more}" if failed else f"mutants: FAIL: {name}: no test sees it", flush=True)
    print(f"mutants: {caught} passed, {len(mutants) - caught} failed, 0 skipped")
    sys.exit(caught != len(mutants))


main()
