#!/usr/bin/env python3
"""Takes the checksum or the digest out of each way to change metadata, one at a time, and expects a test to fail.

Usage: mutants.py DIRECTORY [NAME...]
       mutants.py --check

DIRECTORY gets a copy of the sources and what is built of it, which stays for the next time. A mutant replaces one place of one file; where the
place is not there just once any more, this fails and is to be brought up to date. Tests are those of the mutant's crate, and where
these pass those of the lab that strike metadata. Each line says which tests saw it. The last line counts mutants that were seen
as passed. `--check` builds nothing: it only looks whether each place is there.
"""
import os, re, shutil, subprocess, sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PHYSICAL, NAMING, CACHE, OBJECT = "physical", "naming", "cache", "object"
OWNED = "crates/physical/src/meta_block/owned.rs"
CHANGES = "crates/physical/src/audit/changes.rs"
WORDS = "crates/physical/src/words.rs"
ROLLED = "crates/naming/src/rolled.rs"
SUMS = "crates/physical/src/audit/sums.rs"
NAMES = "crates/naming/src/audit/mod.rs"
INDEX = "crates/naming/src/audit/index.rs"
GUARDED = "crates/physical/src/guarded.rs"
COMMIT = "crates/physical/src/commit.rs"
REQUESTS = "crates/physical/src/requests.rs"
LOG = "crates/physical/src/intent_log.rs"
ATTRIBUTES = "crates/cache/src/sealed_attributes.rs"
MEMBERS = "crates/cache/src/members.rs"
UNLOGGED = "crates/cache/src/unlogged.rs"
SEALED = "crates/physical/src/sealed_record.rs"
SNAPSHOTS = "crates/physical/src/snapshot/mod.rs"
ENDS = "crates/physical/src/intent_log/ends.rs"
WRITTEN = "crates/physical/src/written_pages.rs"
SEAL = "crates/object/src/arena/seal.rs"
PROVED = "crates/object/src/proved.rs"
META = "crates/physical/src/meta_block.rs"
# Each test ends within seconds; a mutant may wait for what never comes.
TEST_S = 600
# What it is built from is built anew at first, perhaps on a busy machine.
BUILD_S = 2400

# Name, crate, file, what is there, what comes in its place.
MUTANTS = [
    ("digest of a pointer", PHYSICAL, OWNED, "self.count(|counting, bytes| counting.pointer(&bytes.as_chunks().0[slot], &new));", ""),
    ("digest of a page in the place of a page", PHYSICAL, CHANGES, "self.addresses += addresses;", "let _ = addresses;"),
    ("digest of a record", PHYSICAL, OWNED, "self.count(|counting, bytes| counting.record(slot, &bytes.as_chunks().0[slot], record));", ""),
    ("digest of a counter of references", PHYSICAL, OWNED, "self.count(|counting, _| counting.counter(slot, old, value));", ""),
    ("digest of a snapshot", PHYSICAL, OWNED, "self.count(|counting, bytes| counting.snapshot(slot, &bytes.as_chunks().0[slot], snapshot));", ""),
    ("digest of a dead run", PHYSICAL, OWNED, "self.count(|counting, bytes| counting.dead_run(&bytes.as_chunks().0[slot], run));", ""),
    ("digest of bits", PHYSICAL, OWNED, "self.count(|counting, _| counting.word(word, old, value));", ""),
    ("checksum of a pointer", PHYSICAL, OWNED, "Delta::of_slot(slot, block.slot::<POINTER_BYTES>(slot), &new)", "{ let _ = block; Delta::NONE }"),
    ("checksum of a counter of references", PHYSICAL, OWNED, "Delta::of_word(word, before, before ^ u64::from(block.counter(slot) ^ value) << shift)", "{ let _ = (before, shift); Delta::NONE }"),
    ("checksum of bits", PHYSICAL, OWNED, "Delta::of_word(word, block.word(word), value)", "{ let _ = block; Delta::NONE }"),
    ("checksum of a range", PHYSICAL, OWNED, "Delta::of(at, &block.bytes.0[at..at + bytes.len()], bytes)", "{ let _ = block; Delta::NONE }"),
    ("hook of all blocks", PHYSICAL, "crates/physical/src/meta_block.rs", "delta(self).apply(&mut self.sums.sum, &mut self.sums.tally);", "let _ = delta;"),
    ("checksum of the allocator's words", PHYSICAL, WORDS, "Delta::of_word(at, *word, value).apply(&mut self.crc, &mut self.tally);", "let _ = at;"),
    ("sum of bits that a mask gets", PHYSICAL, WORDS, "chunk.sum.set(word, bit);", ""),
    ("sum of bits that a mask loses", PHYSICAL, WORDS, "chunk.sum.clear(word, bit);", ""),
    ("sum of words that a mask gets", PHYSICAL, WORDS, "chunk.sum.set(at, *new);", "let _ = at;"),
    ("comparison of the sums kept twice", PHYSICAL, "crates/physical/src/audit/twin.rs", "if here == there {", "if here == there || true {"),
    ("second of the sums kept twice", PHYSICAL, "crates/physical/src/audit/twin.rs", "        change(here);\n        change(there);", "        change(here);\n        *there = here.clone();"),
    ("check of a count", PHYSICAL, GUARDED, "Scribble::unless_equal(what, Counted::new(self.number).check, self.check).map(|()| self.number)", "{ let _ = what; Ok(self.number) }"),
    ("check of a count from its number", PHYSICAL, GUARDED, "self.check = self.check.wrapping_sub(more.wrapping_mul(STEP));", "*self = Counted::new(self.number);"),
    ("address of a changed block", PHYSICAL, GUARDED, "Ok([first.get(what)?, second.get(what)?])", "{ let _ = what; Ok([first.number, second.number]) }"),
    ("address of a copy that is written", PHYSICAL, COMMIT, "let address = address.get(\"address to which a block is written\");", "let address: std::result::Result<u64, Scribble> = Ok(address.unverified());"),
    ("list of what goes where in a write", PHYSICAL, REQUESTS, "Scribble::unless_equal(\"list of the blocks of a write\", requests.route.0, Route::of(writes).0);", "{ let _ = (writes, requests.route.0); Ok::<(), Scribble>(()) };"),
    ("list of what goes where, while the device has it", PHYSICAL, REQUESTS, "        self.watch(outcome)?;\n", "        if outcome.is_ok() {\n            return Ok(());\n        }\n        self.watch(outcome)?;\n"),
    ("epoch of a prepared superblock", PHYSICAL, "crates/physical/src/sealed.rs", "match superblock.epoch == self.epoch {", "match superblock.epoch == self.epoch || true {"),
    ("sums of what is put into the log", PHYSICAL, "crates/physical/src/intent_log/body.rs", "for &(end, expected) in &self.pieces {", "for &(end, expected) in &self.pieces[..0] {"),
    ("heads of the log before they are written", PHYSICAL, LOG, "if rolls && let Err(scribble) = body.verify_heads([&head, &copy], &headers) {", "if let Err(scribble) = Ok::<(), Scribble>(()) {"),
    ("heads of the log after they were written", PHYSICAL, LOG, "let heads = body.verify_heads([&head, &copy], &headers);", "let heads: std::result::Result<(), Scribble> = Ok(());"),
    ("pages after they were written to the log", PHYSICAL, LOG, "let pages = pages.iter().try_for_each(Page::verify);", "let pages: Result<()> = Ok(());"),
    ("record of an object that has not changed", PHYSICAL, COMMIT, "misfit.and_then(|()| slots::check_owners(key, parts, is_changed)).err();", "{ let _ = is_changed; misfit.err() };"),
    ("bound that sinks", PHYSICAL, COMMIT, "self.audit_bound(base, *key, record);", "let _ = (key, record);"),
    ("bound of a page alone", PHYSICAL, COMMIT, "let is_beyond = record.page_bound == 0 && !record.root.is_hole();", "let is_beyond = false;"),
    ("checksum of a page of names", NAMING, ROLLED, "self.crc64 ^= delta.crc64;", ""),
    ("page of names without a second sum", CACHE, "crates/cache/src/plan.rs", "if bytes.seal().is_none() && is_metadata {", "if bytes.seal().is_none() && is_metadata && false {"),
    ("second sum of a page of names", NAMING, ROLLED, "self.seal = self.seal.changed(delta.tally);", ""),
    ("digest of an entry", NAMING, INDEX, "changes.entries = changes.entries.wrapping_add(times);", ""),
    ("digest of an entry's name", NAMING, INDEX, "changes.names += SetDigest::of(name_number(object, place)).times(times);", "let _ = (object, place);"),
    ("digest of an entry's link", NAMING, INDEX, "changes.links += SetDigest::of(link_number(object, raw.kind)).times(times);", "let _ = object;"),
    ("digest of an entry of a directory", NAMING, INDEX, "changes.subdirectories += SetDigest::of(object.0).times(times);", "let _ = object;"),
    ("digest of a wrong key", NAMING, INDEX, "changes.keys_wrong += is_wrong;", "let _ = is_wrong;"),
    ("digest of a wrong key gone", NAMING, INDEX, "changes.keys_wrong_gone += is_wrong;", "let _ = is_wrong;"),
    ("digest of a node's count", NAMING, INDEX, "*sum = sum.wrapping_add(u64::from(count).wrapping_mul(times));", "let _ = (sum, count, times);"),
    ("digest of a branch gone", NAMING, INDEX, "self.changes.branches -= child(bytes)", "{ child(bytes); }"),
    ("digest of a branch put", NAMING, INDEX, "self.changes.branches += child(bytes)", "{ child(bytes); }"),
    ("digest of a node", NAMING, INDEX, "self.changes.nodes += SetDigest::of(page).times(times);", ""),
    ("digest of how many nodes there are", NAMING, INDEX, "self.changes.nodes_count = self.changes.nodes_count.wrapping_add(times);", ""),
    ("digest of a free page", NAMING, INDEX, "self.changes.free += SetDigest::of(page).times(times);", ""),
    ("digest of the next free page", NAMING, INDEX, "self.changes.free_named += SetDigest::of(next).times(times);", ""),
    ("digest of the next free page of a cut directory", NAMING, INDEX, "self.changes.free_named_put += SetDigest::of(next);", ""),
    ("digest of a header's pages", NAMING, INDEX, "add(&mut self.changes.pages, raw.pages.get());", ""),
    ("digest of a header's free pages", NAMING, INDEX, "add(&mut self.changes.free_count, raw.free_count.get());", ""),
    ("digest of strange pages", NAMING, INDEX, "self.changes.strange += u64::from(times == 1);", "let _ = times;"),
    ("digest of what is cut", NAMING, INDEX, "(self.changes.is_cut, self.changes.lost) = (true, lost);", "let _ = lost;"),
    ("equations of names", NAMING, NAMES, "if sides.iter().any(|(left, right)| left != right) {", "if sides.len() > 100 && sides.iter().any(|(left, right)| left != right) {"),
    ("check of a page's twin", CACHE, "crates/cache/src/twin.rs", "page.verify().is_ok().then_some(page)", "Some(page)"),
    ("comparison of attributes kept twice", CACHE, ATTRIBUTES, "self.newest == self.twin", "self.newest == self.twin || true"),
    ("comparison of attributes before an answer", CACHE, "crates/cache/src/pages.rs", "if object.attributes.is_good() && object.progress.is_created_known() {", "if (object.attributes.is_good() || true) && object.progress.is_created_known() {"),
    ("attributes as they are durable", CACHE, ATTRIBUTES, "self.stable.heal()?", "None::<String>"),
    ("sum of attributes that differ", CACHE, ATTRIBUTES, "        if self.is_good() {\n            self.sum", "        if true {\n            self.sum"),
    ("attributes of the epoch being written", CACHE, "crates/cache/src/flush.rs", "                        self.heal_frozen(frozen.epoch, &mut frozen.objects[at])?;\n                        pages = 0;", "                        pages = 0;"),
    ("operations of an epoch before its recovery point", CACHE, "crates/cache/src/flush.rs", "if let Some(differs) = frozen.ops.heal()? {", "if let Some(differs) = None::<String> {"),
    ("places of pages before the recovery point", CACHE, "crates/cache/src/flush.rs", "if let Some(differs) = object.places.heal(&mut object.id, &mut object.pages)? {", "if let Some(differs) = None::<String> {"),
    ("attributes that are read back", CACHE, "crates/cache/src/flush.rs", "if let Some(differs) = object.attributes.unlike(stored) {", "if let Some(differs) = object.attributes.unlike(stored).filter(|_| false) {"),
    ("batch after the store has had it", CACHE, "crates/cache/src/flush.rs", "if frozen::sum_of_batch(&batch.ops)? != before {", "if before == 1 {"),
    ("twin of the operation log", CACHE, "crates/cache/src/oplog.rs", "self.record(1, at, to)", "self.record(0, at, to)"),
    ("operation for the log", CACHE, UNLOGGED, "self.sum() == self.check", "self.sum() == self.check || true"),
    ("file that goes along with a rename", CACHE, UNLOGGED, "Brought::new(id, self.at).check == self.check", "Brought::new(id, self.at).check == self.check || true"),
    ("batch after something for it has gone bad", CACHE, "crates/cache/src/sync.rs", "if state.is_spoilt() {", "if false {"),
    ("sum of a set of what has changed", CACHE, MEMBERS, "sum.wrapping_add(mixed(*member))) == self.sum", "sum.wrapping_add(mixed(*member))) == self.sum || true"),
    ("which objects have changed", CACHE, MEMBERS, "if !self.open.objects.is_good() {", "if false {"),
    ("which pages have changed", CACHE, MEMBERS, "let is_bad = !self.dirty.is_good();", "let is_bad = false;"),
    ("which pages the log has not", CACHE, MEMBERS, "let is_bad = !self.unlogged.is_good();", "let is_bad = false;"),
    ("which names the log has not", CACHE, MEMBERS, "if !self.names_unlogged.is_good() {", "if false {"),
    ("links that are proved", OBJECT, PROVED, "of_object.links = SetDigest::of(link_number(id, kind as u8)).times(nlink.into());", ""),
    ("entries that are proved", OBJECT, PROVED, "of_object.entries = number.times(entries);", "let _ = entries;"),
    ("objects without a name that are proved", OBJECT, PROVED, "of_object.nameless = number;", ""),
    ("names that are proved", OBJECT, PROVED, "names.for_each(|place| of_object.names += SetDigest::of(name_number(id, place)));", "let _ = names;"),
    ("what a request has proved", NAMING, NAMES, "|sum, object| sum + object.proved())", "|sum, object| { object.proved(); sum })"),
    ("what requests have proved against records", CACHE, "crates/cache/src/proved.rs", "if proved == records {", "if proved == records || true {"),
    ("deleted objects of what is proved", CACHE, "crates/cache/src/proved.rs", ".map(|object| object.id).chain(deleted(frozen));", ".map(|object| object.id);"),
    ("requests that nobody has audited", CACHE, "crates/cache/src/proved.rs", "None => self.unaudited.add(1),", "None => {}"),
    ("page that is put", CACHE, "crates/cache/src/proved/pages.rs", "        add(&mut self.pages, &version(id, index, checksum).words());\n", "        let _ = (id, index, checksum);\n"),
    ("page in whose place another is put", CACHE, "crates/cache/src/proved/pages.rs", "Some(checksum) => add(&mut self.pages, &(-version(id, index, checksum)).words()),", "Some(checksum) => { let _ = (id, index, checksum); }"),
    ("page that goes and is not known", CACHE, "crates/cache/src/proved/pages.rs", "None => self.pages[0] = Thrice::unknown(),", "None => {}"),
    ("page that is cut off", CACHE, "crates/cache/src/admit.rs", "    state.open.proved.drop_pages(id, object, first..end);\n", ""),
    ("page that is deleted", CACHE, "crates/cache/src/admit.rs", "    state.open.proved.drop_pages(id, &object, ..);\n", ""),
    ("page that is lost", CACHE, "crates/cache/src/errors.rs", "        self.open.proved.drop_pages(id, object, index..=index);\n", ""),
    ("page that a scrub puts", CACHE, "crates/cache/src/scrub.rs", "                    state.open.proved.put_page(id, index, page.page().checksum);\n", ""),
    ("page that is written", CACHE, "crates/cache/src/proved/pages.rs", "self.pages += version(id, fragment.index, fragment.page.checksum);", "let _ = fragment;"),
    ("page that the store has not written", CACHE, "crates/cache/src/proved/pages.rs", "fragments.iter().filter(|fragment| self.identities.contains_key(&(id, fragment.index)))", "fragments.iter()"),
    ("page that the store says it has not", CACHE, "crates/cache/src/proved/pages.rs", "refused += version(object.id, *index, twin.checksum_of(page)?);", "twin.checksum_of(page)?;"),
    ("pages that requests have put against those written", CACHE, "crates/cache/src/proved/pages.rs", "if put == stored {", "if put == stored || true {"),
    ("checksum of a page by its twin", CACHE, "crates/cache/src/twin.rs", "if page.page().checksum == twin.page().checksum {", "if page.page().checksum == twin.page().checksum || true {"),
    ("number that grows, each copy from itself", CACHE, "crates/cache/src/thrice.rs", "        for (copy, mask) in self.0.iter_mut().zip(MASKS) {\n            *copy = (*copy ^ mask).wrapping_add(more) ^ mask;\n        }", "        let [first, ..] = self.said();\n        self.set(first.wrapping_add(more));"),
    ("number of which two copies are right", CACHE, "crates/cache/src/thrice.rs", "if first == second || first == third {", "if first < u64::MAX {"),
    ("number in which no two copies agree", CACHE, "crates/cache/src/progress.rs", "                healed.lost += 1;\n", ""),
    ("what becomes durable by a batch", CACHE, "crates/cache/src/sync.rs", "if captured.sum() != captured.sum {", "if captured.sum == 1 {"),
    ("epoch that may have gone by what is put right", PHYSICAL, "crates/physical/src/own_records.rs", "let has_begun = !self.dirty.is_empty() || !self.changed.is_empty();", "let has_begun = false;"),
    ("which snapshot is asked", PHYSICAL, "crates/physical/src/snapshot/mod.rs", "Some((_, held)) if held.verify().is_ok() => Ok((&held.view, live)),", "Some((_, held)) if held.slot.get() < u16::MAX => Ok((&held.view, live)),"),
    ("record before what has become of it", PHYSICAL, SEALED, "        } else if record != self.record {\n            self.bytes()?;", "        } else if record != self.record {"),
    ("sums of a record", PHYSICAL, SEALED, "sums.verify(&bytes, [\"checksum of the record\", \"second sum of the record\"])?;", "let _ = sums;"),
    ("bits beyond a record", PHYSICAL, SEALED, "Scribble::unless_equal(\"bits of the record that it has no place for\", 0, self.record.root.excess())?;", ""),
    ("entry of a snapshot", PHYSICAL, SNAPSHOTS, "self.0.unwrap_or(FormSums::of(&[])).verify(&stored.encode(), names)", "{ let _ = names; Ok(()) }"),
    ("bits beyond an entry of a snapshot", PHYSICAL, SNAPSHOTS, "Scribble::unless_equal(\"bits beyond the checksum of a snapshot\", 0, excess)?;", "let _ = excess;"),
    ("snapshots before something is made of them", PHYSICAL, SNAPSHOTS, "self.kept.verify(domain).map_err(|bad| self.give_up_snapshot(base, domain, bad))", "{ let _ = domain; Ok(()) }"),
    ("deleted snapshot", PHYSICAL, "crates/physical/src/snapshot/delete.rs", "self.sums.verify(&self.stored)", "Ok(())"),
    ("snapshot that is read again", PHYSICAL, "crates/physical/src/snapshot/heal.rs", "listed.filter(|listed| sums.are_of(&listed.bytes))", "listed.filter(|_| false)"),
    ("runs that are to join a dead list", PHYSICAL, "crates/physical/src/snapshot/dying.rs", "Scribble::unless_equal(\"sum of runs that are to join a dead list\", self.sum, sum)", "{ let _ = sum; Ok(()) }"),
    ("runs before they join a dead list", PHYSICAL, "crates/physical/src/snapshot/dead_list.rs", "let outcome = sound.and_then(|()| self", "let outcome = sound.or(Ok(())).and_then(|()| self"),
    ("where the log ends, kept twice", PHYSICAL, ENDS, "Scribble::unless_equal(\"where the intent log ends (a number of it, kept twice)\", !inverted, *word)", "{ let _ = (inverted, word); Ok(()) }"),
    ("where the log ends, by the device", PHYSICAL, ENDS, "log.is_unread() || log.ends.may_be(&ends, last)", "log.is_unread() || { let _ = last; true }"),
    ("equation of log heads", PHYSICAL, ENDS, "(self.used, self.epoch) == (told.used, told.epoch) && self.used <= room.end - room.start", "true || told.used == room.end"),
    ("what the log's blocks hold", PHYSICAL, "crates/physical/src/intent_log/contents.rs", "Scribble::unless_equal(what, self.check, weigh(&self.sums)).map", "Ok::<(), Scribble>({ let _ = what; }).map"),
    ("pages of names after they were written", PHYSICAL, WRITTEN, "let (expected, got) = match page.verify() {\n", "let (expected, got) = match page.verify() {\n                Err(_) => continue,\n"),
    ("whose page of names was written", PHYSICAL, WRITTEN, "page.seal().is_none_or(|seal| seal.is_of(key.object, *index))", "true || page.seal().is_none()"),
    ("second sum of a page under its checksum", OBJECT, SEAL, "if got == self.tally() { Ok(()) }", "if got == self.tally() || true { Ok(()) }"),
    ("second sum of a link's page", CACHE, "crates/cache/src/state.rs", "    page.seal_for(id, index);\n", ""),
    ("blocks after they were written", PHYSICAL, COMMIT, "        self.trees.read().verify_written(&self.base)?;\n", ""),
    ("audit of a recovery point", PHYSICAL, COMMIT, "            trees.audit_epoch(&self.base, &self.label()?, &self.superblock()?, &next)?;\n", "            let _ = &next;\n"),
    ("copies of a superblock after they were written", PHYSICAL, COMMIT, "        disk.flush()?;\n        Sealed::verify_copies(disk, sealed, &copies).map_err(|corruption| {", "        disk.flush()?;\n        Ok(superblock).map_err(|corruption: Box<holdfast_object::Corruption>| {"),
    ("clean block before it is changed", PHYSICAL, "crates/physical/src/tree.rs", "match copy.filter(|copy| !base.is_scribbled(copy, key, pointer.address[0], pointer.birth_phys)) {", "match copy {"),
    ("clean block after a second", PHYSICAL, "crates/physical/src/base.rs", "if now_ms.wrapping_sub(checked_ms) >= age_max_ms {", "if false && now_ms.wrapping_sub(checked_ms) >= age_max_ms {"),
    ("changed block after a second", PHYSICAL, "crates/physical/src/dirty.rs", "        if now_ms.wrapping_sub(self.checked_ms.load(Ordering::Relaxed)) < LOOK_AGAIN_MS {", "        if now_ms != u32::MAX {"),
    ("which block a change meets", PHYSICAL, OWNED, "        self.block.is_block(key)?;\n", "        let _ = key;\n"),
    ("slots of blocks that are written", PHYSICAL, COMMIT, "            trees.check_slots(&self.base, epoch)?;\n", ""),
    ("which parts of a block have changed", PHYSICAL, OWNED, "        self.changed.add(at, bytes.len());\n", ""),
    ("slots of blocks that are read", PHYSICAL, META, "let Err(misfit) = slots::check(self.bytes(), key, Parts::ALL, limits)", "let Err(misfit) = slots::check(self.bytes(), key, Parts::default(), limits)"),
    ("whose memory a change meets", PHYSICAL, META, "        self.is_at_home(key)\n", "        Ok(())\n"),
    ("whose memory is verified", PHYSICAL, META, "        self.is_at_home(key)?;\n", ""),
    ("whose memory goes free with a block", PHYSICAL, META, "            self.bytes.forget();\n", ""),
    ("memory that is written to", PHYSICAL, "crates/physical/src/locked_block.rs", "        if self.resident().is_none() {\n            return;\n        }\n", ""),
    ("memory that is given to a block", PHYSICAL, "crates/physical/src/locked_block.rs", ".filter(|identity| !identity.is_in_use()) {", ".or(Some(Identity::of(start.as_ptr().addr()))) {"),
    ("what a scrub has worked with", PHYSICAL, "crates/physical/src/mend.rs", "match known.check_held(disk, &label, &newest) {", "match Ok::<(), holdfast_object::Error>(()) {"),
    ("batch of the intent log after its pages were read", PHYSICAL, "crates/physical/src/log_recovery.rs", "        let mut batch = open()?;\n        let mut pinned", "        let mut batch = first;\n        let mut pinned"),
    ("batch that is replayed after the store has had it", CACHE, "crates/cache/src/recover.rs", "if sum_of(&batch)? != before {", "if before.1 == u64::MAX {"),
]
# Of the audits, what is told of by others than the blocks that change: all methods that change what they know.
TOLD = [("audit", PHYSICAL, SUMS), ("audit of names", NAMING, NAMES)]
CHANGES = re.compile(r"    pub\(crate\) fn (\w+)(?:<[^<>]*>)?\(\s*&mut self\b")
METHOD = re.compile(r"    pub\(crate\) fn (\w+)\(\s*&mut self\b(?:[^()]|\([^()]*\))*\)( -> Result<(?:\(\)|Proved)(?:, \w+)?>)? \{\n")


def told():
    """The audits' methods, each of which is to be without effect."""
    for of, crate, path in TOLD:
        text = read(path)
        methods = list(METHOD.finditer(text))
        if unknown := set(CHANGES.findall(text)) - {method[1] for method in methods}:
            sys.exit(f"mutants: {path} has methods of a form that is not known here: {', '.join(sorted(unknown))}")
        for method in methods:
            nothing = "return;" if not method[2] else "return Ok(Proved::NOTHING);" if "Proved" in method[2] else "return Ok(());"
            yield (f"{of}: {method[1]}", crate, path, method[0], method[0] + f"        if true {{\n            {nothing}\n        }}\n")


def check(mutants):
    """Exits if there is one whose place is not there just once, or that changes nothing."""
    wrong = [f"{path} has {count} times: {there}" for _, _, path, there, _ in mutants if (count := read(path).count(there)) != 1]
    wrong += [f"it changes nothing: {name}" for name, _, _, there, instead in mutants if there == instead]
    names = [name for name, *_ in mutants]
    # A new way to change a block comes with its mutants.
    edit = read(OWNED).partition("impl Edit<'_> {")[2].partition("#[cfg(test)]")[0]
    for what in ("Delta::", "self.count(|"):
        taken_out = sum(there.count(what) for _, _, path, there, _ in mutants if path == OWNED)
        if edit.count(what) != taken_out:
            wrong.append(f"{OWNED} has {edit.count(what)} times {what} in what changes blocks, of which {taken_out} are taken out")
    wrong += [f"not the only one: {name}" for name in sorted(set(names)) if names.count(name) > 1]
    if wrong:
        sys.exit("\n".join(f"mutants: FAIL: {what}" for what in wrong))


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
    # A mutant changes one line: built so, its crate's tests are there in 9 s instead of 29. Optimising across a crate's units, compilers
    # have left symbols undefined in what was built by steps.
    quick = {"CARGO_INCREMENTAL": "1", "CARGO_PROFILE_DEV_DEBUG": "none", "CARGO_PROFILE_DEV_LTO": "off"}
    environment = dict(os.environ, CARGO_TARGET_DIR=os.path.join(os.path.dirname(tree), "target"), **quick)
    limit_s = BUILD_S if "--no-run" in arguments else TEST_S
    try:
        done = subprocess.run(["cargo", "test", *arguments], cwd=tree, env=environment, capture_output=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return 1, "test it ends ... FAILED\n"
    return done.returncode, (done.stdout + done.stderr).decode(errors="replace")


def seen(tree, crate):
    """Tests that fail; none if all pass."""
    lab = [["-p", "holdfast-lab", "--test", "it", "--", "metadata", "explorer", "torture"]]
    own = [["-p", f"holdfast-{crate}", "--lib"], ["-p", f"holdfast-{crate}", "--test", "it"]]
    for tests in own[: 1 + os.path.exists(os.path.join(ROOT, "crates", crate, "tests"))] + lab:
        at = tests.index("--") if "--" in tests else len(tests)
        status, said = cargo(tree, "--no-run", *tests[:at])
        if status:
            sys.exit(f"mutants: cannot be built:\n{said[-4000:]}")
        status, said = cargo(tree, *tests)
        if status:
            return re.findall(r"^test (.*) \.\.\. FAILED$", said, re.MULTILINE) or ["a test ended the process"]
    return []


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-") and sys.argv[1:] != ["--check"]:
        sys.exit(__doc__)
    every = MUTANTS + list(told())
    check(every)
    if sys.argv[1] == "--check":
        print(f"mutants: all {len(every)} have their place")
        return
    work, only = os.path.abspath(sys.argv[1]), sys.argv[2:]
    mutants = [mutant for mutant in every if not only or mutant[0] in only]
    if len(mutants) < len(only):
        sys.exit(f"mutants: these are: {', '.join(name for name, *_ in every)}")
    tree, caught = os.path.join(work, "tree"), 0
    copy_sources(tree)
    for crate in sorted({crate for _, crate, *_ in mutants}):
        if failed := seen(tree, crate):
            sys.exit(f"mutants: without any these tests fail: {', '.join(failed)}")
    for name, crate, path, there, instead in mutants:
        sound = read(path)
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
