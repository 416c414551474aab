//! The option `--node` of all commands that reach nodes.

use fieldstone_server::running::FixedNode;

/// Nodes that run at an address and not from their folder.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct NodeOptions {
    /// Reach node I at ADDR instead of through its folder. May be repeated.
    #[arg(long = "node", value_name = "I=ADDR")]
    pub fixed: Vec<FixedNode>,
}
