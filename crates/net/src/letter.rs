//! What a worker finds in its mailbox.

use std::sync::Arc;
use std::time::Instant;

use broker::{AuthOutcome, Mail, Now, Shard};

use crate::auth_pool::AuthTicket;
use crate::connection::Arrival;
use crate::crew::Lodger;
use crate::handover::HandedOver;
use crate::mailbox::Weight;

pub(crate) type ShardCall = Box<dyn FnOnce(&mut Shard, Now) + Send>;

pub(crate) enum Letter {
    /// A connection that somebody else has accepted.
    HandedOver(Box<HandedOver>),
    /// Ends the connection that keeps this.
    EndTenure(Arc<()>),
    /// Messages of another shard, at most one letter per tick of the sender.
    Mail(Mail),
    /// A connection whose CONNECT says that it belongs here.
    Arrival(Box<Arrival>),
    Authenticated {
        ticket: AuthTicket,
        outcome: AuthOutcome,
    },
    Call(ShardCall),
    /// The journal has kept more: the next tick looks.
    Committed,
    /// A worker that is to be run by this one's thread.
    Lodger(Lodger),
    /// For connections accepted from now on.
    ReloadTls {
        listener: u16,
        config: Arc<rustls::ServerConfig>,
    },
    ShutDown {
        deadline: Instant,
    },
}

impl Weight for Letter {
    fn weight_bytes(&self) -> usize {
        match self {
            Letter::Mail(mail) => mail.size_bytes(),
            _ => 0,
        }
    }
}
