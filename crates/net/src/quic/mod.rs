//! MQTT over QUIC: the first bidirectional stream of a connection carries MQTT packets, as over TCP. If the listener
//! allows it, the client opens further streams for messages.
//!
//! The protocol is `quinn-proto`, a state machine without I/O, in the event loops of the workers. A listener has one
//! UDP socket. One worker, the socket's *reader*, reads it and has the `Endpoint`, which finds the connection of each
//! datagram by its connection ID, so that a client may change its address. One socket per worker with SO_REUSEPORT
//! was rejected: the kernel selects a socket by address and port, and the datagrams of a client that has moved to
//! another address would reach the wrong worker.
//!
//! Each `Connection` belongs to a worker, as a TCP connection does: first to the reader, and after CONNECT to the
//! worker that owns the client id. That worker decrypts, encrypts, runs the timers, and sends with its own duplicate of
//! the socket. The reader passes datagrams to it through its mailbox, at most one item per tick. A full mailbox drops
//! them, as a network does: QUIC sends them again.
//!
//! Back-pressure: the server does not read from a paused connection, so that its flow control stops the client. It
//! always receives datagrams, because they contain the acknowledgements of its output.
//!
//! `config.rs` has the limits, `windows.rs` those of the memory of a connection. `endpoint.rs` accepts connections.
//! `events.rs` passes events of a connection to the loop. `transmit.rs` sends. `connection.rs` is the byte stream.
//! `streams.rs` has the further streams. `path.rs` checks new addresses. `mail.rs` goes to other workers.

mod config;
mod connection;
mod endpoint;
mod events;
mod fixed_limits;
mod lost;
mod mail;
mod path;
mod socket;
mod streams;
mod timers;
mod transmit;
mod windows;
mod worker;

pub(crate) use connection::QuicConnection;
pub use fixed_limits::QUIC_LIMITS;
pub(crate) use mail::QuicMail;
pub(crate) use streams::DataStream;
pub(crate) use worker::QuicWorker;
