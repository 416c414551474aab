//! Streams step by step: the test answers for the nodes.

use fieldstone_accel::{Job, JobId};
use fieldstone_block::Nanos;
use fieldstone_gf::field::mul;
use fieldstone_proto::{BLOCK_BYTES, Outcome, crc32c_blocks};

use super::*;
use crate::script::{Script, Sent};
use crate::segment::State;

/// A volume rs:4+2 on eight nodes that make parity, and have confirmed their passes.
fn script() -> Script {
    let mut script = Script::serving(8);
    script.core(|core| {
        core.config.encode = Encode::Stream;
        core.nodes.iter_mut().for_each(|node| node.relay.reach = Reach::Here);
        let all: Vec<NodeIndex> = (0..8).map(NodeIndex).collect();
        assert!(!core.are_admitted(&all));
    });
    for sent in script.sent() {
        script.done(&sent);
    }
    script
}

fn is_shard(sent: &Sent) -> bool {
    matches!(sent.request.body, RequestBody::ShardWrite { .. })
}

fn is_pass(sent: &Sent) -> bool {
    matches!(sent.request.body, RequestBody::AdmitRelays { .. })
}

fn codes(script: &Script) -> usize {
    let codes = |(_, job): &&(JobId, Job)| matches!(job, Job::Code { .. });
    script.jobs.iter().filter(codes).count()
}

/// The parity nodes of a streamed write.
fn parity(sent: &Sent) -> Vec<NodeIndex> {
    let route = sent.request.route.as_ref().expect("a route");
    route.replicas[1..].iter().map(|replica| replica.node).collect()
}

/// A data node has its data, and tells these outcomes on its parity nodes.
fn answer(script: &mut Script, sent: &Sent, outcomes: [Result<(), NodeError>; 2]) {
    let own = Outcome { node: sent.node, result: Ok(()) };
    let others = parity(sent).into_iter().zip(outcomes);
    let others = others.map(|(node, result)| Outcome { node, result });
    let outcomes = std::iter::once(own).chain(others).collect();
    script.answer(sent, Ok(ReplyBody::Outcomes(outcomes)));
}

/// Writes four rows. Gives the data shards' writes; the journal has the header.
fn write_rows(script: &mut Script) -> Vec<Sent> {
    script.write(0, 16);
    let (shards, headers): (Vec<_>, Vec<_>) = script.sent().into_iter().partition(is_shard);
    headers.iter().for_each(|sent| script.done(sent));
    assert_eq!((shards.len(), codes(script)), (4, 0));
    assert!(script.sent().is_empty());
    shards
}

fn assert_at_rest(script: &mut Script, streamed: u64, coded_again: u64) {
    script.core(|core| {
        assert!(core.nodes.iter().all(|node| node.slots.claimed.is_empty()));
        assert!(core.calls.streams.is_empty());
        let counters = &core.counters;
        assert_eq!(
            (counters.parities_streamed, counters.parities_coded_again),
            (streamed, coded_again)
        );
    });
}

#[test]
fn rows_go_as_data_only_and_wait_for_their_parity() {
    let mut script = script();
    let before = script.core(|core| core.counters.sent_bytes);
    let shards = write_rows(&mut script);
    let sent_bytes = script.core(|core| core.counters.sent_bytes) - before;
    let headers_bytes = 3 * BLOCK_BYTES as u64;
    assert_eq!(sent_bytes, 16 * BLOCK_BYTES as u64 + headers_bytes, "each byte once");
    // What the columns say makes the parity of the code.
    let map = script.core(|core| std::sync::Arc::clone(core.shape.code().encode()));
    let data: Vec<Vec<u8>> = shards.iter().map(|sent| sent.request.payload.concat()).collect();
    let mut wanted = vec![vec![0; 4 * BLOCK_BYTES]; 2];
    let inputs: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let mut outputs: Vec<&mut [u8]> = wanted.iter_mut().map(Vec::as_mut_slice).collect();
    map.execute(&inputs, &mut outputs).expect("it fits");
    let mut made = vec![vec![0; 4 * BLOCK_BYTES]; 2];
    for (at, sent) in shards.iter().enumerate() {
        let route = sent.request.route.as_ref().expect("a route");
        let column = route.column().expect("a column");
        assert_eq!((usize::from(column.index), column.count), (at, 4));
        assert_eq!(route.check(sent.node), Ok(()));
        let of_shards: Vec<u8> = route.replicas.iter().map(|r| r.shard.0).collect();
        assert_eq!(of_shards, [at as u8, 4, 5]);
        let Factors::Scalars(factors) = &column.factors else { panic!("one element") };
        for (made, factor) in made.iter_mut().zip(factors) {
            made.iter_mut().zip(&data[at]).for_each(|(sum, byte)| *sum ^= mul(*factor, *byte));
        }
    }
    assert!(made == wanted, "the columns are those of the code");
    for sent in &shards {
        assert!(script.completions.is_empty());
        answer(&mut script, sent, [Ok(()), Ok(())]);
        script.sent();
    }
    assert_eq!((script.completions.len(), codes(&script)), (1, 0));
    assert_at_rest(&mut script, 2, 0);
}

#[test]
fn one_data_node_that_tells_of_the_parity_is_enough() {
    let mut script = script();
    let shards = write_rows(&mut script);
    let lost = |sent: &Sent, at: usize| {
        Err(NodeError::NotPassedOn { from: sent.node, to: parity(sent)[at] })
    };
    answer(&mut script, &shards[0], [Ok(()), lost(&shards[0], 1)]);
    answer(&mut script, &shards[1], [lost(&shards[1], 0), Ok(())]);
    for sent in &shards[2..] {
        answer(&mut script, sent, [Err(NodeError::Busy), Err(NodeError::Busy)]);
    }
    script.sent();
    assert_eq!((script.completions.len(), codes(&script)), (1, 0));
    assert_at_rest(&mut script, 2, 0);
}

#[test]
fn parity_that_a_node_denies_comes_from_the_volume() {
    let mut script = script();
    let shards = write_rows(&mut script);
    let denies = parity(&shards[0])[1];
    answer(&mut script, &shards[2], [Ok(()), Err(NodeError::Busy)]);
    // A new pass ends at once what the others wait for.
    let pass = script.sent_one();
    assert!(is_pass(&pass) && pass.node == denies);
    for at in [0, 1, 3] {
        assert!(script.sent().is_empty() && codes(&script) == 0);
        answer(&mut script, &shards[at], [Ok(()), Err(NodeError::Busy)]);
    }
    assert!(script.sent().is_empty() && script.completions.is_empty());
    assert_eq!(codes(&script), 4, "one for each row");
    script.do_jobs();
    let sent = script.sent_one();
    assert!(is_shard(&sent) && sent.node == denies && sent.request.route.is_none());
    assert!(script.completions.is_empty());
    script.done(&sent);
    script.sent();
    assert_eq!(script.completions.len(), 1);
    script.core(|core| assert!(!core.log.journal_move.has_to_move()));
    assert_at_rest(&mut script, 1, 1);
    // The node rests. Then it is used again.
    let routes = |core: &mut VolumeCore| {
        let nodes: Vec<NodeIndex> = shards.iter().map(|sent| sent.node).collect();
        core.stream_routes(&[nodes, parity(&shards[0])].concat(), BLOCK_BYTES).is_some()
    };
    script.done(&pass);
    assert!(!script.core(routes));
    script.wait_ms(1_000);
    script.sent();
    assert!(script.core(routes));
}

/// Writes rows whose second parity shard is denied. The volume makes it, and announces no pass.
fn write_with_a_denial(script: &mut Script) -> Vec<NodeIndex> {
    let before = script.completions.len();
    let shards = write_rows(script);
    for sent in &shards {
        assert!(script.sent().is_empty() && codes(script) == 0);
        answer(script, sent, [Ok(()), Err(NodeError::Denied)]);
    }
    assert!(script.sent().is_empty(), "the others have their answers, and nothing is late");
    script.do_jobs();
    let sent = script.sent_one();
    assert!(is_shard(&sent) && sent.node == parity(&shards[0])[1] && sent.request.route.is_none());
    script.done(&sent);
    script.sent();
    assert_eq!(script.completions.len(), before + 1);
    script.core(|core| assert!(!core.log.journal_move.has_to_move()));
    let nodes: Vec<NodeIndex> = shards.iter().map(|sent| sent.node).collect();
    [nodes, parity(&shards[0])].concat()
}

/// A piece for which there was no memory costs no other piece anything.
#[test]
fn a_piece_without_memory_comes_from_the_volume_and_the_next_from_nodes() {
    let mut script = script();
    let nodes = write_with_a_denial(&mut script);
    assert!(script.core(|core| core.stream_routes(&nodes, BLOCK_BYTES).is_some()));
    for sent in write_rows(&mut script) {
        answer(&mut script, &sent, [Ok(()), Ok(())]);
    }
    script.sent();
    assert_eq!(script.completions.len(), 2);
    assert_at_rest(&mut script, 3, 1);
}

/// A data node whose answer is late may have contributed, so its loss ends the pass as ever.
#[test]
fn a_denial_and_a_lost_link_need_a_new_pass() {
    let mut script = script();
    let shards = write_rows(&mut script);
    let lost = Err(NodeError::NotPassedOn { from: shards[1].node, to: parity(&shards[1])[0] });
    answer(&mut script, &shards[0], [Err(NodeError::Denied), Ok(())]);
    assert!(script.sent().is_empty());
    answer(&mut script, &shards[1], [lost, Ok(())]);
    let pass = script.sent_one();
    assert!(is_pass(&pass) && pass.node == parity(&shards[0])[0]);
}

/// A node without memory for any sum costs products now and then only.
#[test]
fn a_node_that_always_denies_rests_longer_and_longer() {
    let mut script = script();
    let nodes = write_with_a_denial(&mut script);
    let routes = |script: &mut Script| {
        assert!(script.sent().is_empty());
        script.core(|core| core.stream_routes(&nodes, BLOCK_BYTES).is_some())
    };
    script.core(|core| (0..14).for_each(|_| core.note_denial(nodes[5])));
    // Four data nodes tell of each denial. It counts once.
    assert!(routes(&mut script));
    write_with_a_denial(&mut script);
    assert!(!routes(&mut script), "16 in a row");
    script.core(|core| {
        assert!(core.may_relay(nodes[5]), "records go through it");
        let data: Vec<NodeIndex> = [5, 0, 1, 2, 3, 4].map(|at: usize| nodes[at]).to_vec();
        assert!(core.stream_routes(&data, BLOCK_BYTES).is_some(), "so does its own data");
        // A record that went through it says nothing about its memory for parity.
        let replicas = vec![core.replica(nodes[0]), core.replica(nodes[5])];
        let (strategy, content) = (Strategy::Ring, Content::Same);
        let route = Route { strategy, rank: 0, wait_ms: 1, replicas, content, ..Route::default() };
        let node = |at: usize| Outcome { node: nodes[at], result: Ok(()) };
        let answer = Ok(ReplyBody::Outcomes(vec![node(0), node(5)]));
        assert_eq!(core.outcomes_of(nodes[0], &route, answer), [Ok(()), Ok(())]);
    });
    assert!(!routes(&mut script), "still in a row");
    for rest_ms in [1_000, 2_000] {
        // What was under way adds nothing.
        script.core(|core| core.note_denial(nodes[5]));
        script.wait_ms(rest_ms - 1);
        assert!(!routes(&mut script), "{rest_ms}");
        script.wait_ms(1);
        assert!(routes(&mut script), "{rest_ms}");
        script.core(|core| core.note_denial(nodes[5]));
        assert!(!routes(&mut script), "{rest_ms}");
    }
    script.wait_ms(4_000);
    assert!(routes(&mut script));
    let before = script.completions.len();
    for sent in write_rows(&mut script) {
        answer(&mut script, &sent, [Ok(()), Ok(())]);
    }
    script.sent();
    assert_eq!(script.completions.len(), before + 1);
    script.core(|core| (0..15).for_each(|_| core.note_denial(nodes[5])));
    assert!(routes(&mut script), "a piece that a node made ends the row");
}

#[test]
fn a_lost_data_node_moves_the_journal_and_the_volume_makes_the_parity() {
    let mut script = script();
    let shards = write_rows(&mut script);
    script.reconnect(shards[1].node);
    let passes: Vec<NodeIndex> =
        script.sent().iter().filter(|sent| is_pass(sent)).map(|sent| sent.node).collect();
    assert_eq!(passes, parity(&shards[0]));
    for at in [0, 2, 3] {
        answer(&mut script, &shards[at], [Err(NodeError::Busy), Err(NodeError::Busy)]);
    }
    script.sent();
    script.do_jobs();
    let direct: Vec<Sent> = script.sent().into_iter().filter(is_shard).collect();
    let nodes: Vec<NodeIndex> = direct.iter().map(|sent| sent.node).collect();
    assert_eq!(nodes, parity(&shards[0]));
    direct.iter().for_each(|sent| script.done(sent));
    script.sent();
    script.core(|core| assert!(core.log.journal_move.has_to_move(), "a row is lost"));
    assert!(script.completions.is_empty());
    assert_at_rest(&mut script, 0, 2);
}

/// The node may have lost what it had not synced.
#[test]
fn parity_on_a_node_that_was_lost_since_does_not_count() {
    let mut script = script();
    let shards = write_rows(&mut script);
    let lost = parity(&shards[0])[0];
    answer(&mut script, &shards[0], [Ok(()), Ok(())]);
    script.reconnect(lost);
    script.sent();
    for sent in &shards[1..] {
        answer(&mut script, sent, [Ok(()), Ok(())]);
    }
    script.sent();
    assert!(script.completions.is_empty());
    script.core(|core| assert!(core.log.journal_move.has_to_move()));
    assert_eq!(codes(&script), 0);
    assert_at_rest(&mut script, 2, 0);
}

#[test]
fn complete_shards_go_as_data_only() {
    for denied in [false, true] {
        let mut script = script();
        let handle = script.add_segment(&[None; 6]);
        script.core(|core| {
            core.segments.set_state(handle, State::Closed);
            let segment = core.segments.get_mut(handle).expect("it was added");
            segment.begun_at = Some(Nanos(1));
        });
        script.start(move |ctx| async move {
            let shard = |byte: u8| {
                let data = Bytes::from(vec![byte; 2 * BLOCK_BYTES]);
                Shard { checksums: crc32c_blocks(&data), data }
            };
            let data: Vec<Shard> = (0..4).map(shard).collect();
            let meta = SealMeta { shard_bytes: 8192, ..SealMeta::default() };
            stream_segment(&ctx, handle, &data, meta).await;
        });
        let shards: Vec<Sent> = script.sent();
        assert!(shards.iter().all(is_shard));
        assert_eq!((shards.len(), codes(&script)), (4, 0));
        let last = if denied { Err(NodeError::Busy) } else { Ok(()) };
        shards.iter().for_each(|sent| answer(&mut script, sent, [Ok(()), last.clone()]));
        let renewed = script.sent();
        assert_eq!(renewed.iter().filter(|sent| is_pass(sent)).count(), usize::from(denied));
        script.do_jobs();
        let direct: Vec<Sent> = script.sent().into_iter().filter(is_shard).collect();
        let nodes: Vec<NodeIndex> = direct.iter().map(|sent| sent.node).collect();
        let again = if denied { vec![parity(&shards[0])[1]] } else { Vec::new() };
        assert_eq!(nodes, again, "to the same node: it may have the shard");
        direct.iter().for_each(|sent| script.done(sent));
        script.sent();
        script.core(|core| {
            let segment = core.segments.get(handle).expect("it was added");
            assert_eq!((segment.missing(), segment.sending), (0, false));
        });
        assert_at_rest(&mut script, 2 - u64::from(denied), u64::from(denied));
    }
}

#[test]
fn nodes_make_the_parity_of_every_code_whose_columns_fit_a_message() {
    for (code, streams) in [
        ("rs:4+2", true),
        ("rs:4+15", true),
        ("rs:4+16", false),
        ("copies:3", true),
        ("zigzag:4+2", true),
        ("zigzag:11+2,n=1024", true),
        ("clay:10+4", true),
        ("cauchy-good:6+3,w=32", true),
        ("clay:16+4", false),
    ] {
        assert_eq!(can_stream(code.parse().expect("a code")), streams, "{code}");
    }
}

/// A volume of a code with two elements, in chunks of two blocks, whose nodes make parity.
fn script_of_elements() -> Script {
    let mut script = Script::serving_in_chunks(8, "zigzag:2+2", 2 * BLOCK_BYTES as u32);
    script.core(|core| {
        core.config.encode = Encode::Stream;
        core.nodes.iter_mut().for_each(|node| node.relay.reach = Reach::Here);
        assert_eq!(core.encodes(), Encode::Stream);
        let all: Vec<NodeIndex> = (0..8).map(NodeIndex).collect();
        assert!(!core.are_admitted(&all));
    });
    script.sent().iter().for_each(|sent| script.done(sent));
    script
}

#[test]
fn rows_of_a_code_with_elements_go_with_its_tables() {
    let mut script = script_of_elements();
    // Two rows, each with a chunk of two blocks on both data shards.
    script.write(0, 8);
    let (shards, headers): (Vec<_>, Vec<_>) = script.sent().into_iter().partition(is_shard);
    headers.iter().for_each(|sent| script.done(sent));
    assert_eq!((shards.len(), codes(&script)), (2, 0));
    for sent in &shards {
        let route = sent.request.route.as_ref().expect("a route");
        assert_eq!(route.check(sent.node), Ok(()));
        let Some(Column { factors: Factors::Elements(table), .. }) = route.column() else {
            panic!("a table")
        };
        assert_eq!((table.elements, table.chunk_bytes), (2, 2 * BLOCK_BYTES as u32));
        assert_eq!(sent.request.payload.concat().len(), 4 * BLOCK_BYTES);
        answer(&mut script, sent, [Ok(()), Ok(())]);
        script.sent();
    }
    assert_eq!((script.completions.len(), codes(&script)), (1, 0));
    assert_at_rest(&mut script, 2, 0);
}

/// A process of an older release does not know tables, and closes the connection.
#[test]
fn a_node_that_was_lost_with_a_table_gets_none_for_a_while() {
    let mut script = script_of_elements();
    let nodes: Vec<NodeIndex> = (0..4).map(NodeIndex).collect();
    let routes = |script: &mut Script| {
        assert!(script.sent().is_empty());
        script.core(|core| core.stream_routes(&nodes, 2 * BLOCK_BYTES).is_some())
    };
    assert!(routes(&mut script));
    script.core(|core| core.note_new_form(nodes[2], NewForm::Table, &Err(NodeError::Unreachable)));
    assert!(routes(&mut script), "a parity node gets no table");
    script.core(|core| core.note_new_form(nodes[1], NewForm::Table, &Err(NodeError::Unreachable)));
    assert!(!routes(&mut script));
    script.wait_ms(1_000);
    assert!(routes(&mut script));
}

#[test]
fn the_loss_of_a_data_node_with_a_table_is_noted() {
    let mut script = script_of_elements();
    // Two streams are on their way: the loss counts once.
    script.write(0, 8);
    let shards: Vec<Sent> = script.sent().into_iter().filter(is_shard).collect();
    script.write(8, 8);
    script.sent();
    let lost = shards[0].node;
    script.reconnect(lost);
    let may_get = |script: &mut Script, form| {
        script.sent();
        script.core(|core| core.may_get(lost, form))
    };
    assert!(!may_get(&mut script, NewForm::Table) && may_get(&mut script, NewForm::Parts));
    script.wait_ms(1_000);
    assert!(may_get(&mut script, NewForm::Table));
}

/// A node of another process reaches no node of this one.
#[test]
fn data_nodes_have_to_reach_the_parity_nodes() {
    let mut script = script();
    let nodes: Vec<NodeIndex> = (0..6).map(NodeIndex).collect();
    let mut routes = |apart: &[usize]| {
        script.core(|core| {
            for (at, node) in core.nodes.iter_mut().enumerate() {
                node.relay.reach = match apart.contains(&at) {
                    true => Reach::At(Bytes::from_static(b"unix:/n")),
                    false => Reach::Here,
                };
            }
            core.stream_routes(&nodes, BLOCK_BYTES).is_some()
        })
    };
    assert!(routes(&[]) && routes(&[0, 1, 2, 3, 4, 5]) && routes(&[4, 5]));
    assert!(routes(&[5]), "data nodes of this process reach every node");
    assert!(!routes(&[0]) && !routes(&[0, 5]));
}
