//! stub
use super::message::*;
use crate::*;
use fieldstone_proto::*;
#[allow(missing_docs)]
#[derive(Default)]
pub struct NodeServer {}
#[allow(missing_docs)]
impl NodeServer {
    pub fn received(&mut self, _i: u32, _e: Event, _r: &mut Router) {}
    pub fn sent(&mut self, _i: u32, _e: &Event) {}
    pub fn reply(&mut self, _l: Link, _r: Reply) {}
    pub fn link_up(&mut self, _l: Link) {}
    pub fn link_down(&mut self, _l: Link) {}
    pub fn accept(&mut self, _s: Socket, _n: NodeIndex, _r: &mut Router) {}
    pub fn pump(&mut self, _r: &mut Router, _re: &mut Reactor) -> bool {
        false
    }
    pub fn close_all(&mut self, _re: &mut Reactor) {}
}
