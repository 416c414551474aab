//! Serves a device in memory over NBD on a UNIX socket: the smallest host of a session.
//!
//! ```text
//! cargo run -p fieldstone-nbd --example nbd_ram -- /tmp/ram.sock 64
//! nbdinfo nbd+unix:///?socket=/tmp/ram.sock
//! ```
//!
//! One blocking thread per connection. It is for trying clients by hand (docs/nbd.md), not for
//! production.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use bytes::Bytes;
use fieldstone_block::{Completion, Extent, ExtentKind, Info, Nanos, Op, Payload, Piece, Request};
use fieldstone_nbd::{Export, ExportList, Limits, Session, SessionPhase};
use smallvec::smallvec;

/// Bytes per unit of allocation.
const BLOCK_BYTES: u64 = 4096;

struct Ram {
    bytes: Vec<u8>,
    allocated: Vec<bool>,
}

impl Ram {
    fn serve(&mut self, request: &Request) -> Payload {
        let start = usize::try_from(request.offset_bytes).expect("range-checked by the session");
        let range = start..start + request.len_bytes as usize;
        let blocks = start / BLOCK_BYTES as usize..range.end.div_ceil(BLOCK_BYTES as usize);
        match request.op {
            Op::Read if !self.allocated[blocks.clone()].contains(&true) => {
                Payload::Data(smallvec![Piece::Zeroes(request.len_bytes)])
            }
            Op::Read => {
                Payload::Data(smallvec![Piece::Data(Bytes::copy_from_slice(&self.bytes[range]))])
            }
            Op::Write => {
                self.bytes[range].copy_from_slice(&request.data);
                self.allocated[blocks].fill(true);
                Payload::None
            }
            Op::Trim | Op::WriteZeroes => {
                self.bytes[range.clone()].fill(0);
                let whole = start.div_ceil(BLOCK_BYTES as usize)..range.end / BLOCK_BYTES as usize;
                if !request.flags.no_hole && whole.start < whole.end {
                    self.allocated[whole].fill(false);
                }
                Payload::None
            }
            Op::Flush => Payload::None,
            Op::Extents => Payload::Extents(self.extents(request)),
        }
    }

    fn extents(&self, request: &Request) -> Vec<Extent> {
        let (mut extents, mut at) = (Vec::<Extent>::new(), request.offset_bytes);
        while at < request.end_bytes() {
            let end = ((at / BLOCK_BYTES + 1) * BLOCK_BYTES).min(request.end_bytes());
            let block = usize::try_from(at / BLOCK_BYTES).expect("range-checked by the session");
            let kind = if self.allocated[block] { ExtentKind::Data } else { ExtentKind::Hole };
            match extents.last_mut() {
                Some(last) if last.kind == kind => last.len_bytes += end - at,
                _ => extents.push(Extent { len_bytes: end - at, kind }),
            }
            at = end;
        }
        extents
    }
}

fn converse(
    mut stream: UnixStream,
    list: Arc<ExportList>,
    ram: &Mutex<Ram>,
) -> std::io::Result<()> {
    let start = Instant::now();
    let mut session = Session::new(list, Limits::default());
    let mut out = Vec::new();
    loop {
        while let Some((_, request)) = session.next_request() {
            let payload = ram.lock().expect("no server thread panics").serve(&request);
            session.complete(Completion::of(&request, Ok(payload)));
        }
        session.output(&mut out);
        if !out.is_empty() {
            for piece in out.drain(..) {
                stream.write_all(&piece)?;
            }
            continue;
        }
        if session.phase() == SessionPhase::Closed {
            if let Some(violation) = session.violation() {
                eprintln!("connection ended: {violation}");
            }
            return Ok(());
        }
        let received = stream.read(session.receive_space())?;
        let now = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        session.received(received, Nanos(now));
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(path), Some(mib)) = (arguments.next(), arguments.next()) else {
        return Err("usage: nbd_ram SOCKET MEBIBYTES".into());
    };
    let size_bytes = mib.parse::<u64>()? << 20;
    let info = Info {
        size_bytes,
        block_bytes: 1,
        preferred_bytes: 4096,
        read_ahead_bytes: 0,
        read_only: false,
    };
    // One `Ram` behind one lock serves all connections, so the promise holds.
    let export = Export {
        description: "memory, forgotten when the server ends".into(),
        can_multi_conn: true,
        ..Export::new("ram", &info)
    };
    let list = Arc::new(ExportList::new(vec![export])?);
    let ram = Arc::new(Mutex::new(Ram {
        bytes: vec![0; usize::try_from(size_bytes)?],
        allocated: vec![false; usize::try_from(size_bytes / BLOCK_BYTES)?],
    }));
    let listener = UnixListener::bind(&path)?;
    for stream in listener.incoming() {
        let (stream, list, ram) = (stream?, list.clone(), ram.clone());
        std::thread::spawn(move || {
            if let Err(error) = converse(stream, list, &ram) {
                eprintln!("connection lost: {error}");
            }
        });
    }
    Ok(())
}
