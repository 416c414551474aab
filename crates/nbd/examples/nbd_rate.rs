//! The number of requests per second that one core moves through a session, without sockets and
//! backend.
//!
//! ```text
//! cargo run --release -p fieldstone-nbd --example nbd_rate
//! ```
//!
//! Each round receives a batch of requests in one piece, completes them in order and takes the
//! replies as one gather list, like a server with a deep queue. So every round includes the costs
//! of the real path: copying the received bytes once, the payload buffer, the reply.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fieldstone_block::{Completion, Nanos, Op, Payload, Piece};
use fieldstone_nbd::client::{Client, Config};
use fieldstone_nbd::{Export, ExportList, Limits, Session};
use smallvec::smallvec;

const MEASURE: Duration = Duration::from_millis(700);
const ROUNDS: usize = 3;

struct Case {
    name: &'static str,
    config: Config,
    write: bool,
    depth: u64,
    len_bytes: u32,
}

fn gathered(fill: impl FnOnce(&mut Vec<Bytes>)) -> Vec<u8> {
    let mut out = Vec::new();
    fill(&mut out);
    out.concat()
}

fn receive(session: &mut Session, bytes: &[u8]) {
    let mut left = bytes;
    while !left.is_empty() {
        let space = session.receive_space();
        let len = space.len().min(left.len());
        space[..len].copy_from_slice(&left[..len]);
        session.received(len, Nanos(1));
        left = &left[len..];
        // The session must decode a large write's header before its payload has a place.
        if !left.is_empty() {
            assert!(session.next_request().is_none(), "batches end with their last byte");
        }
    }
}

fn measure(case: &Case) -> f64 {
    let export = Export {
        name: "disk".into(),
        description: String::new(),
        size_bytes: 1 << 40,
        read_only: false,
        can_multi_conn: true,
        minimum_block_bytes: 1,
        preferred_block_bytes: 4096,
    };
    let list = ExportList::new(vec![export]).expect("a sound export");
    let mut session = Session::new(Arc::new(list), Limits::default());
    let mut client = Client::new(case.config.clone());
    while client.about().is_none() {
        client.receive(&gathered(|out| session.output(out))).expect("the session is sound");
        receive(&mut session, &gathered(|out| client.output(out)));
        assert!(session.next_request().is_none());
    }
    let data = Bytes::from(vec![0x5a; case.len_bytes as usize]);
    for at in 0..case.depth {
        let offset = at * u64::from(case.len_bytes);
        if case.write {
            client.write(offset, data.clone(), 0);
        } else {
            client.read(offset, case.len_bytes, 0);
        }
    }
    let batch = gathered(|out| client.output(out));
    let (mut out, mut requests) = (Vec::new(), Vec::new());
    let (start, mut done) = (Instant::now(), 0u64);
    while start.elapsed() < MEASURE {
        receive(&mut session, &batch);
        while let Some((_, request)) = session.next_request() {
            requests.push(request);
        }
        assert_eq!(requests.len() as u64, case.depth);
        for request in requests.drain(..) {
            let payload = match request.op {
                Op::Read => Payload::Data(smallvec![Piece::Data(data.clone())]),
                _ => Payload::None,
            };
            session.complete(Completion::of(&request, Ok(payload)));
        }
        session.output(&mut out);
        done += case.depth;
        black_box(&out);
        out.clear();
    }
    done as f64 / start.elapsed().as_secs_f64()
}

fn main() {
    let case = |name, structured, write, depth, len_bytes| {
        let config = if structured { Config::full("disk") } else { Config::simple("disk") };
        Case { name, config, write, depth, len_bytes }
    };
    let cases = [
        case("read 4 KiB, depth 32, simple replies", false, false, 32, 4096),
        case("read 4 KiB, depth 32, structured replies", true, false, 32, 4096),
        case("write 4 KiB, depth 32, simple replies", false, true, 32, 4096),
        case("write 4 KiB, depth 32, structured replies", true, true, 32, 4096),
        case("write 1 MiB, depth 1, simple replies", false, true, 1, 1 << 20),
    ];
    for case in &cases {
        let mut rates: Vec<f64> = (0..ROUNDS).map(|_| measure(case)).collect();
        rates.sort_by(f64::total_cmp);
        let rate = rates[ROUNDS / 2];
        println!("{:<45} {:>9.0} requests/s {:>7.0} ns each", case.name, rate, 1e9 / rate);
    }
}
