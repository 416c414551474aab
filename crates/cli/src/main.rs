//! The `fieldstone` command.
fn main() {}
