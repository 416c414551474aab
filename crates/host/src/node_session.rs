//! A connection to one node, for calls that do not belong to a volume, for example to list the
//! volumes that the node knows. Calls block their thread.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use fieldstone_proto::{
    Capability, NodeError, NodeIndex, Reply, ReplyBody, Request, RequestBody, Tag,
};

use crate::control::Control;
use crate::folder::{self, FolderError};
use crate::handle::Handle;
use crate::message::{Link, LocalNodeId, NodePlace};
use crate::remote_session::RemoteSession;
use crate::timed_call::within;
use fieldstone_uring::Address;

/// The pause before a busy node is asked again. A node is busy while it starts.
const BUSY_PAUSE: Duration = Duration::from_millis(5);

/// Why a call to a node failed.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The node cannot be reached.
    #[error("{node} cannot be reached: {reason}")]
    Unreachable {
        /// The node.
        node: NodeIndex,
        /// The reason.
        reason: String,
    },
    /// The node refused the call.
    #[error("{node}: {source}")]
    Refused {
        /// The node.
        node: NodeIndex,
        /// The reason.
        source: NodeError,
    },
}

/// A connection to one node.
pub struct NodeSession {
    node: NodeIndex,
    timeout: Duration,
    next_tag: u64,
    transport: Transport,
}

enum Transport {
    Local { handle: Handle, node: LocalNodeId, link: Link, replies: Receiver<Reply> },
    Socket(Box<RemoteSession>),
}

impl NodeSession {
    /// Connects within `timeout`. Every [`NodeSession::ask`] may take as long again.
    ///
    /// # Errors
    /// A node in another process cannot be reached in time. If a node in this process is down, the
    /// first [`NodeSession::ask`] fails.
    pub fn connect(
        handle: &Handle,
        node: NodeIndex,
        place: &NodePlace,
        timeout: Duration,
    ) -> Result<Self, SessionError> {
        let unreachable = |reason: String| SessionError::Unreachable { node, reason };
        let deadline = Instant::now() + timeout;
        let at = |address: &Address| {
            RemoteSession::connect(address, deadline)
                .map(|session| Transport::Socket(Box::new(session)))
                .map_err(|error| unreachable(error.to_string()))
        };
        let transport = match place {
            NodePlace::Here(node) => {
                let node = *node;
                let (sender, replies) = mpsc::channel();
                let link = handle.new_link();
                handle.call_node(node, Control::NodeOpen { node, link, replies: sender });
                Transport::Local { handle: handle.clone(), node, link, replies }
            }
            NodePlace::At(endpoint) => at(endpoint.address())?,
            NodePlace::Announced(path) => {
                let folder = path.clone();
                let address =
                    within(deadline, &path.to_string_lossy(), move || folder::announced(&folder))
                        .map_err(|_| unreachable(FolderError::Silent(path.clone()).to_string()))?
                        .ok_or_else(|| unreachable("its process does not run".to_owned()))?;
                at(&address)?
            }
            NodePlace::Listed(directory, node) => {
                let address = directory.address(*node);
                at(&address.ok_or_else(|| unreachable("it has no address".to_owned()))?)?
            }
        };
        Ok(Self { node, timeout, next_tag: 1, transport })
    }

    /// Sends a request and waits for the answer. While the node is busy, it sends the request
    /// again. All of this together takes at most the timeout of the connection.
    ///
    /// # Errors
    /// The node refuses, is down, or does not answer in time.
    pub fn ask(
        &mut self,
        capability: Capability,
        body: &RequestBody,
    ) -> Result<ReplyBody, SessionError> {
        let deadline = Instant::now() + self.timeout;
        loop {
            let tag = Tag(self.next_tag);
            self.next_tag += 1;
            let (body, payload) = (body.clone(), Vec::new());
            let request = Request { tag, capability, body, route: None, payload };
            let reply = self.exchange(request, deadline)?;
            match reply.result {
                Ok(body) => return Ok(body),
                Err(NodeError::Busy) if Instant::now() < deadline => {
                    std::thread::sleep(BUSY_PAUSE);
                }
                Err(source) => return Err(SessionError::Refused { node: self.node, source }),
            }
        }
    }

    fn exchange(&mut self, request: Request, deadline: Instant) -> Result<Reply, SessionError> {
        let node = self.node;
        let unreachable = |reason: String| SessionError::Unreachable { node, reason };
        match &mut self.transport {
            Transport::Socket(socket) => {
                socket.exchange(&request, deadline).map_err(|error| unreachable(error.to_string()))
            }
            Transport::Local { handle, node, link, replies } => {
                let (tag, node, link) = (request.tag, *node, *link);
                handle.call_node(node, Control::NodeRequest { node, link, request });
                loop {
                    let rest = deadline.saturating_duration_since(Instant::now());
                    match replies.recv_timeout(rest) {
                        Ok(reply) if reply.tag == tag => return Ok(reply),
                        Ok(_) => {}
                        Err(RecvTimeoutError::Timeout) => {
                            return Err(unreachable("it does not answer".to_owned()));
                        }
                        Err(RecvTimeoutError::Disconnected) => {
                            return Err(unreachable("it is down".to_owned()));
                        }
                    }
                }
            }
        }
    }
}

impl Drop for NodeSession {
    fn drop(&mut self) {
        if let Transport::Local { handle, node, link, .. } = &self.transport {
            handle.call_node(*node, Control::NodeClose { node: *node, link: *link });
        }
    }
}
