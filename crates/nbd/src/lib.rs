//! The NBD server protocol as a state machine without sockets
