//! Verilates the designs of this unit's test bench.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_VERILATOR").is_some()
        && let Err(error) = fieldstone_verilate::build::designs("tb/designs.toml")
    {
        eprintln!("{error}");
        std::process::exit(1);
    }
}
