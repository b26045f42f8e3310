//! Gives the shared library its name for the loader: the number is the first of the ABI's version.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libholdfast.so.1");
}
