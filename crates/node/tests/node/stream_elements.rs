//! Parity of codes that divide shards into elements. The node under test is the data node.

use bytes::Bytes;
use fieldstone_gf::field::mul;
use fieldstone_proto::{
    BLOCK_BYTES, Column, Content, ElementTable, ElementTerm, Epoch, Factors, NodeError,
    RequestBody, ShardIndex, crc32c_blocks,
};

use crate::stream::{LEN_BYTES, VOLUME, WRITER, data, data_write, world};
use crate::world::cap;

fn term(element: u16, factor: u8) -> ElementTerm {
    ElementTerm { element, factor }
}

/// Chunks of one block with two elements. Parity shard 4 has them exchanged and multiplied, shard 5
/// has their sum in its first element and zeroes in its second.
fn table() -> ElementTable {
    let rows = [vec![term(1, 3)], vec![term(0, 0x8e)], vec![term(0, 1), term(1, 1)], vec![]];
    ElementTable::new(BLOCK_BYTES as u32, 2, rows.iter().map(Vec::as_slice)).expect("in bounds")
}

fn with_table(table: ElementTable, data: &[u8]) -> (RequestBody, fieldstone_proto::Route) {
    let (body, mut route) = data_write(&[8, 9], data);
    let factors = Factors::Elements(table);
    route.content = Content::Column(Column { index: 2, count: 4, factors });
    (body, route)
}

#[test]
fn a_data_node_passes_on_sums_of_elements() {
    let mut world = world();
    let data = data(2);
    let mut expected = [vec![0u8; LEN_BYTES], vec![0u8; LEN_BYTES]];
    let half = BLOCK_BYTES / 2;
    for chunk in (0..LEN_BYTES).step_by(BLOCK_BYTES) {
        for at in chunk..chunk + half {
            let (first, second) = (data[at], data[at + half]);
            expected[0][at] = mul(3, second);
            expected[0][at + half] = mul(0x8e, first);
            expected[1][at] = first ^ second;
        }
    }
    let (body, route) = with_table(table(), &data);
    world.send_routed(WRITER, cap(VOLUME, Epoch(1)), body, Some(route), &data);
    assert_eq!(world.relayed.len(), 2);
    for (((_, request), expected), shard) in world.relayed.iter().zip(&expected).zip(4..) {
        assert_eq!(request.payload.concat(), *expected);
        let RequestBody::ShardWrite { shard: to, checksums, .. } = &request.body else {
            panic!("a write")
        };
        assert_eq!((*to, checksums), (ShardIndex(shard), &crc32c_blocks(expected)));
        // The contribution is made: the parity node needs no table.
        let column = request.route.as_ref().and_then(|route| route.column()).expect("a column");
        let factors = Factors::Scalars(Bytes::from_static(&[1, 1]));
        assert_eq!(*column, Column { index: 2, count: 4, factors });
    }
}

#[test]
fn a_table_that_does_not_fit_is_refused_and_nothing_is_passed_on() {
    let good = table();
    let chunk_bytes = 3 * BLOCK_BYTES as u32;
    let hostile = [
        ElementTable { chunk_bytes, ..good.clone() },
        ElementTable { chunk_bytes: 0, ..good.clone() },
        ElementTable { elements: 0, ..good.clone() },
        ElementTable { elements: 1, ..good.clone() },
        ElementTable { encoded: good.encoded.slice(1..), ..good.clone() },
        ElementTable { encoded: Bytes::new(), ..good },
    ];
    for table in hostile {
        let mut world = world();
        let data = data(2);
        let (body, route) = with_table(table.clone(), &data);
        let tag = world.send_routed(WRITER, cap(VOLUME, Epoch(1)), body, Some(route), &data);
        let answer = world.take(tag);
        assert!(matches!(answer, Some(Err(NodeError::Invalid(_)))), "{table:?}: {answer:?}");
        assert!(world.relayed.is_empty());
        world.settle();
    }
}
