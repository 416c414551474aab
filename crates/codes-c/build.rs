//! Gives the shared library its name (SONAME) if `make` asks for it (`FIELDSTONE_SONAME`). Programs
//! that are linked with the library then look for a file of that name, as `make` installs it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=FIELDSTONE_SONAME");
    if std::env::var_os("FIELDSTONE_SONAME").is_some() {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libfieldstone_codes.so.0");
    }
}
