//! The option `--node`, of every command that reaches nodes.

use fieldstone_server::engine::FixedNode;

/// Nodes that do not run where their folders are.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct NodeOptions {
    /// Reach node I at ADDR instead of its folder. May be repeated.
    #[arg(long = "node", value_name = "I=ADDR")]
    pub fixed: Vec<FixedNode>,
}
