//! Tests that the example of `docs/extending.md` works as the document says.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use fieldstone_nbd::client::{Client, Config, Outcome, Reply};

#[path = "../../examples/pattern_store.rs"]
#[allow(dead_code, reason = "its main function is not called here")]
mod pattern_store;

struct Connection {
    stream: UnixStream,
    client: Client,
}

impl Connection {
    fn exchange(&mut self) {
        let mut parts = Vec::new();
        self.client.output(&mut parts);
        self.stream.write_all(&parts.concat()).expect("it listens");
        let mut input = [0; 65536];
        let received = self.stream.read(&mut input).expect("it answers");
        assert!(received > 0, "the server closed the connection");
        self.client.receive(&input[..received]).expect("a sound server");
    }

    fn reply(&mut self) -> Reply {
        loop {
            self.exchange();
            if let Some(reply) = self.client.next_reply().expect("a sound server") {
                return reply;
            }
        }
    }
}

#[test]
fn a_store_from_outside_the_tree_is_served_behind_the_layers() {
    const SIZE_BYTES: u64 = 1 << 20;
    let folder = tempfile::tempdir().expect("temp");
    let socket = folder.path().join("s");
    let host = pattern_store::serve(SIZE_BYTES, &socket).expect("served");
    let stream = UnixStream::connect(&socket).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("set");
    let mut connection = Connection { stream, client: Client::new(Config::full("pattern")) };
    while connection.client.about().is_none() {
        connection.exchange();
    }
    assert_eq!(connection.client.about().map(|about| about.size_bytes), Some(SIZE_BYTES));
    // The range neither starts nor ends on a word, so the layer `align` cuts it out.
    connection.client.read(1013, 20, 0);
    let all: Vec<u8> = (1008_u64..1040).step_by(8).flat_map(u64::to_be_bytes).collect();
    match connection.reply().outcome {
        Outcome::Data(data) => assert_eq!(data, all[5..25]),
        other => panic!("{other:?}"),
    }
    connection.client.write(0, bytes::Bytes::from_static(b"x"), 0);
    let refused = connection.reply().outcome;
    assert!(matches!(refused, Outcome::Failed { .. }), "{refused:?}");
    host.stop().expect("stopped");
}
