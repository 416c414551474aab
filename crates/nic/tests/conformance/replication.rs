//! Replicas: each node of a ring or tree has the bytes, and sends in no circle.

use fieldstone_nic::firmware::packet::Scheme;
use fieldstone_nic::firmware::state::Multiply;

use crate::node::Cluster;
use crate::writes::{settings, write};

#[test]
fn replicas_have_the_bytes() {
    for (scheme, k) in [
        (Scheme::Single, 1),
        (Scheme::Ring { k: 2 }, 2),
        (Scheme::Ring { k: 5 }, 5),
        (Scheme::Tree { k: 2 }, 2),
        (Scheme::Tree { k: 6 }, 6),
    ] {
        let Some(mut cluster) = Cluster::new(k, |n| settings(n, Multiply::Table, 0, 0)) else {
            return;
        };
        for len in [1, 1000, 1936, 1937, 20_001] {
            cluster.replies.clear();
            let write = write(scheme, k, len);
            cluster.deliver(write.packets());
            cluster.assert_all_done(k as usize);
            for (node, coordinates) in cluster.nodes.iter_mut().zip(&write.nodes) {
                assert!(node.stored(coordinates.address, len) == write.data, "{scheme:?} {len}");
                node.storage.clear();
            }
        }
    }
}

/// Nodes of a tree that name each other do not send in a circle: ranks grow.
#[test]
fn no_coordinates_make_a_circle() {
    for scheme in [Scheme::Tree { k: 16 }, Scheme::Ring { k: 16 }] {
        let Some(mut cluster) = Cluster::new(2, |n| settings(n, Multiply::Table, 0, 0)) else {
            return;
        };
        let mut circle = write(scheme, 16, 2500);
        for (rank, node) in circle.nodes.iter_mut().enumerate() {
            node.node = rank as u32 % 2;
        }
        let delivered = cluster.deliver(circle.packets());
        assert!(delivered <= 16 * 3, "{delivered}");
    }
}
