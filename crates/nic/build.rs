//! Verilates the core that the model's costs are checked against, if the feature `verilator` is on.

fn main() {
    fieldstone_verilate::build::unit();
}
