//! A backend that answers only when the test says so.

use std::cell::RefCell;
use std::rc::Rc;

use bytes::Bytes;
use fieldstone_block::{
    Backend, BlockError, Completion, Info, Layer, Nanos, Op, Payload, Piece, QueueId,
    ReadDestination, Request, RequestFlags, RequestId, Sharing, Stack, Stamps,
};

/// The state that the test and the backend share.
#[derive(Default)]
pub struct Desk {
    /// Requests that arrived and have no answer yet, in order.
    pub pending: Vec<Request>,
    ready: Vec<Completion>,
    shared: Option<&'static str>,
    settled: usize,
}

/// A handle to the desk, for the test.
#[derive(Clone, Default)]
pub struct Hand(Rc<RefCell<Desk>>);

impl Hand {
    /// The requests without an answer: operation, offset, length.
    pub fn pending(&self) -> Vec<(Op, u64, u32)> {
        let desk = self.0.borrow();
        desk.pending.iter().map(|r| (r.op, r.offset_bytes, r.len_bytes)).collect()
    }

    /// The names of the requests without an answer.
    pub fn names(&self) -> Vec<u64> {
        self.0.borrow().pending.iter().map(|request| request.id.0).collect()
    }

    /// The data of the waiting request at `index`.
    pub fn data(&self, index: usize) -> Bytes {
        self.0.borrow().pending[index].data.clone()
    }

    /// Answers the waiting request at `index`: a read with bytes of `fill`.
    pub fn answer(&self, index: usize, fill: u8) {
        let mut desk = self.0.borrow_mut();
        let request = desk.pending.remove(index);
        let payload = match request.op {
            Op::Read => {
                let data = Bytes::from(vec![fill; request.len_bytes as usize]);
                Payload::Data([Piece::Data(data)].into_iter().collect())
            }
            _ => Payload::None,
        };
        desk.ready.push(Completion::of(&request, Ok(payload)));
    }

    /// Answers the waiting request at `index` with this payload.
    pub fn answer_with(&self, index: usize, payload: Payload) {
        let mut desk = self.0.borrow_mut();
        let request = desk.pending.remove(index);
        desk.ready.push(Completion::of(&request, Ok(payload)));
    }

    /// Others may use the data from now on, or no longer.
    pub fn share(&self, why: Option<&'static str>) {
        self.0.borrow_mut().shared = why;
    }

    /// How often the layers have told that they keep nothing.
    pub fn settled(&self) -> usize {
        self.0.borrow().settled
    }

    /// Fails the waiting request at `index`.
    pub fn fail(&self, index: usize, error: BlockError) {
        let mut desk = self.0.borrow_mut();
        let request = desk.pending.remove(index);
        desk.ready.push(Completion::of(&request, Err(error)));
    }
}

pub struct Manual {
    hand: Hand,
    block_bytes: u32,
}

impl Manual {
    /// A backend of 1 GiB with blocks of `block_bytes`, and the handle that controls it.
    pub fn new(block_bytes: u32) -> (Self, Hand) {
        let hand = Hand::default();
        (Manual { hand: hand.clone(), block_bytes }, hand)
    }
}

impl Backend for Manual {
    fn info(&self) -> Info {
        Info {
            size_bytes: 1 << 30,
            block_bytes: self.block_bytes,
            preferred_bytes: 4096,
            read_ahead_bytes: 0,
            read_only: false,
        }
    }

    fn submit(&mut self, request: Request, _now: Nanos) {
        request.validate(&self.info()).unwrap();
        self.hand.0.borrow_mut().pending.push(request);
    }

    fn poll(&mut self, _now: Nanos, out: &mut Vec<Completion>) {
        out.append(&mut self.hand.0.borrow_mut().ready);
    }

    fn deadline(&self) -> Option<Nanos> {
        None
    }

    fn shared(&self) -> Option<Sharing> {
        let why = self.hand.0.borrow().shared?;
        Some(Sharing { why, for_good: false })
    }

    fn settled(&mut self) {
        self.hand.0.borrow_mut().settled += 1;
    }
}

/// A request without flags; a write of bytes of `fill`.
pub fn request(id: u64, op: Op, offset_bytes: u64, len_bytes: u32, fill: u8) -> Request {
    let data = match op {
        Op::Write => Bytes::from(vec![fill; len_bytes as usize]),
        _ => Bytes::new(),
    };
    Request {
        id: RequestId(id),
        op,
        offset_bytes,
        len_bytes,
        flags: RequestFlags::default(),
        data,
        destination: ReadDestination::default(),
        queue: QueueId::default(),
        stamps: Stamps::default(),
    }
}

/// One layer over a store.
pub fn over<B: Backend>(store: B, layer: impl Layer) -> Stack<B> {
    Stack::new(store, vec![Box::new(layer)])
}

/// The stack's layer of type `L`.
pub fn layer<L: Layer, B: Backend>(stack: &Stack<B>) -> &L {
    stack.layer().expect("the stack has such a layer")
}

/// Polls and returns the completions as id and result.
pub fn poll(backend: &mut impl Backend, now: u64) -> Vec<(u64, Result<Payload, BlockError>)> {
    let mut out = Vec::new();
    backend.poll(Nanos(now), &mut out);
    let mut list: Vec<_> = out.into_iter().map(|c| (c.id.0, c.result)).collect();
    list.sort_by_key(|(id, _)| *id);
    list
}

/// The bytes of a read's payload.
pub fn bytes_of(payload: &Payload) -> Vec<u8> {
    let Payload::Data(pieces) = payload else { panic!("{payload:?}") };
    let mut bytes = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Data(data) => bytes.extend_from_slice(data),
            Piece::Zeroes(len) => bytes.resize(bytes.len() + *len as usize, 0),
        }
    }
    bytes
}
