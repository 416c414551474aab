//! The protocol from outside: the session against hand-written bytes and against the client.

#[cfg(test)]
mod random;
#[cfg(test)]
mod support;
