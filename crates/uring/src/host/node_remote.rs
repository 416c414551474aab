//! stub
use super::{device::NodePlace, message::DeviceId, token::Kind};
use crate::*;
use fieldstone_block::Nanos;
use fieldstone_proto::*;
#[allow(missing_docs)]
pub enum Heard {
    Up,
    Down,
    Reply(Reply),
}
#[allow(missing_docs)]
pub struct RemoteNode;
#[allow(missing_docs)]
impl RemoteNode {
    pub fn new(_d: DeviceId, _n: NodeIndex, _p: NodePlace) -> Self {
        Self
    }
    pub fn reconnect(&mut self, _r: &mut Reactor) {}
    pub fn send(&mut self, _r: Request) {}
    pub(crate) fn event(
        &mut self,
        _k: Kind,
        _e: Event,
        _n: Nanos,
        _r: &mut Reactor,
        _h: &mut Vec<Heard>,
    ) {
    }
    pub fn flush(&mut self, _r: &mut Reactor) {}
    pub fn close(&mut self, _r: &mut Reactor) {}
}
