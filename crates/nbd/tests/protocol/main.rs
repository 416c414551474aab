//! The protocol from outside: compares the session with hand-written bytes and with the client.

#[cfg(test)]
mod bounds;
#[cfg(test)]
mod commands;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod options;
#[cfg(test)]
mod random;
#[cfg(test)]
mod smoke;
#[cfg(test)]
mod strict_client;
#[cfg(test)]
mod support;
