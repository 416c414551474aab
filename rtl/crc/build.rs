//! Verilates the designs of this unit's bench.

fn main() {
    fieldstone_verilate::build::unit();
}
