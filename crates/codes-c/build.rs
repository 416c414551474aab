//! Gives the shared library the name that `make` asks for (`FIELDSTONE_SONAME`). Programs that are
//! linked with the library then look for a file of that name.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=FIELDSTONE_SONAME");
    if let Ok(name) = std::env::var("FIELDSTONE_SONAME") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{name}");
    }
}
