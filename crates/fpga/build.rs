//! Verilates the device, if the feature `rtl` is on.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "rtl")]
    fieldstone_verilate::build::or_exit(fieldstone_verilate::build::designs("designs.toml"));
}
