//! Verilates the device, when it is asked for.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "rtl")]
    if let Err(error) = fieldstone_verilate::build::designs("designs.toml") {
        eprintln!("{error}");
        std::process::exit(1);
    }
}
