//! **Tree**: a binary tree over the items. Each step hashes the inner node and goes left or right
//! by the weights below. A change of one weight changes only the nodes above it.
//!
//! A node's number gives its height (the count of trailing zero bits) and its place: item i is node
//! 2i + 1, the root is the middle node, and the children of a node of height h are 2^(h-1) to its
//! left and right. Node 0 does not exist.
//!
//! **Traps.** Binary maps count nodes in one byte, so a tree holds at most [`MAX_ITEMS`] items. For
//! larger trees, crushtool writes a count of 0, and crashes when it reads them. When the weight
//! left of a node is 0, the walk goes right. In a tree of zero weights it reaches leaves past the
//! last item, where Ceph reads outside its memory; here such a draw finds no item.

use crate::BucketId;
use crate::hash::hash4;

/// Most items of a tree bucket.
pub(crate) const MAX_ITEMS: usize = 64;

/// The node of the item at `index`.
pub(crate) fn leaf(index: usize) -> usize {
    2 * index + 1
}

/// Number of nodes in a tree of that many items.
pub(crate) fn nodes(items: usize) -> usize {
    if items == 0 { 0 } else { 2 * items.next_power_of_two() }
}

/// The weights of all nodes.
pub(crate) fn node_weights(weights: &[u32]) -> Vec<u32> {
    let mut nodes = vec![0u32; nodes(weights.len())];
    let root = nodes.len() / 2;
    for (index, &weight) in weights.iter().enumerate() {
        let mut node = leaf(index);
        nodes[node] = weight;
        while node != root {
            node = parent(node);
            nodes[node] = nodes[node].wrapping_add(weight);
        }
    }
    nodes
}

fn parent(node: usize) -> usize {
    let half = 1 << node.trailing_zeros();
    if node & (half << 1) == 0 { node + half } else { node - half }
}

/// The index of the drawn item, possibly past the last item. The bucket is not empty.
pub(crate) fn choose(id: BucketId, node_weights: &[u32], x: u32, r: u32) -> usize {
    let mut node = node_weights.len() / 2;
    while node & 1 == 0 {
        let hash = hash4(x, node as u32, r, id.0 as u32);
        let drawn = (u64::from(hash) * u64::from(node_weights[node])) >> 32;
        let half = 1 << (node.trailing_zeros() - 1);
        let left = node - half;
        node = if drawn < u64::from(node_weights[left]) { left } else { node + half };
    }
    node / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_inner_node_weighs_what_its_children_weigh() {
        for size in 1..=MAX_ITEMS {
            let weights: Vec<u32> = (0..size as u32).map(|i| i * i + 1).collect();
            let nodes = node_weights(&weights);
            assert_eq!(nodes[nodes.len() / 2], weights.iter().sum::<u32>());
            for node in (2..nodes.len()).step_by(2) {
                let half = 1 << (node.trailing_zeros() - 1);
                assert_eq!(nodes[node], nodes[node - half] + nodes[node + half], "{size} {node}");
            }
        }
    }

    #[test]
    fn shares_follow_weights() {
        let nodes = node_weights(&[1 << 16, 3 << 16, 0, 2 << 16, 4 << 16]);
        let mut wins = [0u32; 5];
        for x in 0..100_000 {
            wins[choose(BucketId(-3), &nodes, x, 1)] += 1;
        }
        assert_eq!(wins[2], 0);
        for (index, share) in [(0, 10_000), (1, 30_000), (3, 20_000), (4, 40_000)] {
            assert!(wins[index].abs_diff(share) < 700, "{index} won {} times", wins[index]);
        }
    }
}
