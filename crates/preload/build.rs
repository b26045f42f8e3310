//! Keeps the library where it is once it is loaded: streams point into it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libholdfast_preload.so");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
