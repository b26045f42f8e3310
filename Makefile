# The two commands for a newcomer: `make run` gives a mounted store, `make test` proves the build.

TARGET := $(or $(CARGO_TARGET_DIR),target)
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
BENCH_ARGS ?=
CAMPAIGN_ARGS ?=
AGED_ARGS ?=
PREFIX ?= /usr/local
HOLDFAST := $(TARGET)/release/holdfast
LIBRARY := $(TARGET)/release/libholdfast.so
PRELOAD := $(TARGET)/release/libholdfast_preload.so
# Where the binary and what belongs to it are put; DESTDIR goes before it, for those who make packages.
ROOT = $(DESTDIR)$(PREFIX)
BASH_COMPLETIONS = $(ROOT)/share/bash-completion/completions
ZSH_COMPLETIONS = $(ROOT)/share/zsh/site-functions
FISH_COMPLETIONS = $(ROOT)/share/fish/vendor_completions.d
MAN1 = $(ROOT)/share/man/man1
MAN3 = $(ROOT)/share/man/man3
LIB = $(ROOT)/lib
UNITS = $(ROOT)/lib/systemd
RULES = $(ROOT)/lib/udev/rules.d
PC = $(LIB)/pkgconfig/holdfast.pc
# What tells the loader of new libraries. Where PREFIX is the user's own it may not, and where DESTDIR is a package it is the package's matter.
LDCONFIG ?= PATH="$$PATH:/usr/sbin:/sbin" ldconfig
# Where mount(8) looks for its helpers, whatever PREFIX is.
SBIN = $(DESTDIR)/sbin
HELPERS = $(SBIN)/mount.holdfast $(SBIN)/mount.fuse.holdfast

# Cargo writes down, beside what it makes, of which sources it is.
define fail_if_old
newer=$$(cut -s -d: -f2- $(basename $(1)).d 2>/dev/null | xargs -r sh -c 'find "$$@" -prune -newer "$$0"' $(1) 2>/dev/null | head -n 1); \
[ -z "$$newer" ] || { echo "$(1) is older than $$newer, of which it is made: make build, then make install" >&2; exit 1; };
endef

.PHONY: help run mounter build install uninstall wheel test test-long bench bench-integrity bench-metadata bench-flashlog bench-recovery bench-trace campaign aged fmt deny

help: ## what can be made
	@sed -nE 's/^([a-z-]+):.*## (.*)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

run: mounter build ## build, create a store in ~/Holdfast on first use, and mount it
	@$(HOLDFAST) up

# Root mounts by itself; everybody else needs the helper fusermount3.
mounter:
	@[ "$$(id -u)" = 0 ] || command -v fusermount3 >/dev/null || { \
		echo "installing the Debian package fuse3, with which ordinary users mount"; \
		sudo apt-get -qq update && sudo apt-get -qq install -y --no-install-recommends fuse3; } || { \
		echo "there is no fusermount3: have root install fuse3, or run this as root"; exit 1; }

build: ## the holdfast binary, the C library, and the library of `holdfast run`
	cargo build --release -p holdfast -p libholdfast -p holdfast-preload
	@# By this name a program asks for it that was linked with it there.
	ln -sfn libholdfast.so $(LIBRARY).1

install: ## install the binary, the C library (with holdfast.pc for pkg-config) and that of `holdfast run`, manual pages, completions, helpers for mount(8) and units; PREFIX=/usr/local, DESTDIR for packages
	@# Not a dependency: root, who installs, need not have a Rust toolchain.
	@[ -x $(HOLDFAST) ] && [ -e $(LIBRARY) ] && [ -e $(PRELOAD) ] || $(MAKE) build
	@$(foreach built,$(HOLDFAST) $(LIBRARY) $(PRELOAD),$(call fail_if_old,$(built)))
	install -D -m 755 $(HOLDFAST) $(ROOT)/bin/holdfast
	install -D -m 755 $(LIBRARY) $(LIB)/libholdfast.so.1
	ln -sfn libholdfast.so.1 $(LIB)/libholdfast.so
	@# Where `holdfast run` looks: in ../lib, seen from the binary.
	install -D -m 755 $(PRELOAD) $(LIB)/libholdfast_preload.so
	install -D -m 644 crates/libholdfast/include/holdfast.h $(ROOT)/include/holdfast.h
	install -D -m 644 crates/libholdfast/man/holdfast.3 $(MAN3)/holdfast.3
	install -d $(dir $(PC))
	version=$$($(HOLDFAST) --version) && sed "s|@PREFIX@|$(PREFIX)|; s|@VERSION@|$${version#holdfast }|" crates/libholdfast/holdfast.pc.in >$(PC)
	$(HOLDFAST) man --out $(MAN1)
	install -d $(BASH_COMPLETIONS) $(ZSH_COMPLETIONS) $(FISH_COMPLETIONS)
	$(HOLDFAST) completions bash >$(BASH_COMPLETIONS)/holdfast
	$(HOLDFAST) completions zsh >$(ZSH_COMPLETIONS)/_holdfast
	$(HOLDFAST) completions fish >$(FISH_COMPLETIONS)/holdfast.fish
	@# Who installs below a home directory does without.
	@install -d $(SBIN) && [ -w $(SBIN) ] || { echo "no mount.holdfast for mount(8) and /etc/fstab: $(SBIN) cannot be written to"; exit 0; }; \
	for link in $(HELPERS); do echo "ln -s $(PREFIX)/bin/holdfast $$link"; ln -sfn $(PREFIX)/bin/holdfast $$link || exit 1; done
	install -d $(UNITS)/system $(UNITS)/user
	@# The units name the binary by its path.
	for unit in contrib/systemd/holdfast*; do sed 's|/usr/local/bin/|$(PREFIX)/bin/|' $$unit >$(UNITS)/system/$${unit##*/} || exit 1; done
	install -d $(RULES)
	for rules in contrib/udev/*.rules; do sed 's|/usr/local/bin/|$(PREFIX)/bin/|' $$rules >$(RULES)/$${rules##*/} || exit 1; done
	for unit in contrib/systemd/user/holdfast*; do sed 's|/usr/local/bin/|$(PREFIX)/bin/|' $$unit >$(UNITS)/user/$${unit##*/} || exit 1; done
	@[ -z "$(DESTDIR)" ] || exit 0; echo "ldconfig"; $(LDCONFIG) 2>/dev/null; \
	$(LDCONFIG) -p 2>/dev/null | grep -qF "=> $(LIB)/libholdfast.so.1" || \
		echo "the loader does not look in $(LIB): link with -Wl,-rpath,$(LIB), or name it in /etc/ld.so.conf.d and run ldconfig"

uninstall: ## take away what install has put there
	@# Helpers of another installation stay.
	for link in $(HELPERS); do [ "$$(readlink $$link)" != $(PREFIX)/bin/holdfast ] || rm -f $$link || exit 1; done
	rm -f $(LIB)/libholdfast.so.1 $(LIB)/libholdfast.so $(LIB)/libholdfast_preload.so $(ROOT)/include/holdfast.h $(MAN3)/holdfast.3
	rm -f $(PC)
	@[ -n "$(DESTDIR)" ] || $(LDCONFIG) 2>/dev/null || :
	rm -f $(ROOT)/bin/holdfast $(MAN1)/holdfast.1 $(MAN1)/holdfast-*.1
	rm -f $(BASH_COMPLETIONS)/holdfast $(ZSH_COMPLETIONS)/_holdfast $(FISH_COMPLETIONS)/holdfast.fish
	rm -f $(UNITS)/system/holdfast@.service $(UNITS)/system/holdfast-scrub@.service $(UNITS)/system/holdfast-scrub@.timer
	rm -f $(UNITS)/system/holdfast-flashlog@.service $(UNITS)/system/holdfast-flashlog@.socket $(UNITS)/system/holdfast-flashlog-backup@.service
	rm -f $(UNITS)/user/holdfast@.service $(RULES)/90-holdfast-flashlog.rules

wheel: ## build the Python package into target/wheels, for pip install
	@bash -c '. tests/suites/lib.sh && install_packages $$(packages_for python) && wheels target/wheels'

test: ## format, lints, unit and model tests, crash explorer, third-party suites; half an hour on 2 cores
	@tests/run.sh test

test-long: ## the same with larger budgets, and the licences of all dependencies
	@tests/run.sh long

bench: ## compare with ext4, btrfs and fuse2fs; BENCH_ARGS="--quick", BENCH_ARGS=--write for docs/benchmarks.md
	cargo build --release -p holdfast -p holdfast-bench
	@bash -c '. tests/suites/lib.sh && install_packages $$(packages_for bench)'
	$(SUDO) $(TARGET)/release/holdfast-bench $(BENCH_ARGS)

bench-integrity: ## compare the protection modes; BENCH_ARGS="--quick", BENCH_ARGS=--write for docs/integrity-speed.md
	cargo build --release -p holdfast -p holdfast-bench
	$(SUDO) $(TARGET)/release/holdfast-bench-integrity $(BENCH_ARGS)

bench-metadata: ## compare the steps of protection of metadata; BENCH_ARGS="--quick", BENCH_ARGS=--write for docs/metadata-speed.md
	cargo build --release -p holdfast-bench
	$(TARGET)/release/holdfast-bench-metadata $(BENCH_ARGS)

campaign: ## strike metadata in memory, 8,000 times, and each field before each operation; CAMPAIGN_ARGS="--injections 15000", CAMPAIGN_ARGS=--write for docs/metadata-campaign.md and metadata-operations.md
	cargo run --release -p holdfast-lab --bin metadata-campaign -- --injections 8000 $(CAMPAIGN_ARGS)
	cargo run --release -p holdfast-lab --bin metadata-campaign -- --by-operation $(CAMPAIGN_ARGS)

bench-flashlog: ## compare Flashlog on modelled devices with single ones; BENCH_ARGS=--write for docs/flashlog-speed.md, --figures for its figures alone, "--real DIR" for real ones
	cargo build --release -p holdfast-bench
	$(TARGET)/release/holdfast-bench-flashlog $(BENCH_ARGS)

bench-recovery: ## measure what recovering from a flipped bit takes; BENCH_ARGS=--write for docs/recovery.md
	cargo build --release -p holdfast-bench
	$(TARGET)/release/holdfast-recovery $(BENCH_ARGS)

bench-trace: ## record traces of programs at work and replay them in every protection mode; BENCH_ARGS=--write for docs/traces.md
	cargo build --release -p holdfast-bench
	@bash -c '. tests/suites/lib.sh && install_packages $$(packages_for trace)'
	mkdir -p $(TARGET)/traces
	TRACE=$(TARGET)/release/holdfast-trace tests/suites/record-traces.sh $(TARGET)/traces
	$(TARGET)/release/holdfast-trace replay $(TARGET)/traces/*.trace $(BENCH_ARGS)

aged: ## compare stores after a simulated year with fresh ones; AGED_ARGS=--write for docs/aged.md
	cargo build --release -p holdfast -p holdfast-bench
	@bash -c '. tests/suites/lib.sh && install_packages $$(packages_for bench)'
	$(SUDO) $(TARGET)/release/holdfast-aged $(AGED_ARGS)

fmt: ## format all sources
	cargo fmt --all

deny: ## licences, sources and advisories of all dependencies (installs cargo-deny: 3 minutes on 2 cores)
	@bash -c '. tests/suites/lib.sh && install_tool cargo-deny 0.20.2'
	target/tools/bin/cargo-deny check bans licenses sources
	@# the advisories are a git repository on github.com, which not every machine can reach
	@if target/tools/bin/cargo-deny fetch db 2>/dev/null; then target/tools/bin/cargo-deny check --disable-fetch advisories; \
	else echo "advisories NOT checked: their database cannot be fetched from here"; fi
