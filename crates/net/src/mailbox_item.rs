//! The items of a worker's mailbox.

use std::sync::Arc;
use std::time::Instant;

use broker::{AuthOutcome, Mail, Now, Shard};

use crate::access_question::AccessTicket;
use crate::auth_pool::AuthTicket;
use crate::connection::MovedConnection;
use crate::handed_over::HandedOver;
use crate::mailbox::{MailboxSender, WeightBytes};
use crate::quic::QuicMail;
use crate::thread_sharing::SharedThreadWorker;

pub(crate) type ShardCall = Box<dyn FnOnce(&mut Shard, Now) + Send>;

pub(crate) enum MailboxItem {
    /// A connection that another server has accepted, such as the API's.
    HandedOver(Box<HandedOver>),
    /// Closes the handed-over connection that has this tenure.
    CloseHandedOver(Arc<()>),
    /// Messages of another shard: at most one item per tick of the sender.
    Mail(Mail),
    /// A connection whose client id belongs to this worker's shard.
    MovedConnection(Box<MovedConnection>),
    Authenticated {
        ticket: AuthTicket,
        outcome: AuthOutcome,
    },
    /// A question about access rules has been answered.
    Authorized {
        ticket: AccessTicket,
        /// False if there will be no answer.
        is_answered: bool,
    },
    Call(ShardCall),
    /// The journal has committed more records. The next tick processes them.
    Committed,
    /// A worker for this worker's thread to run.
    SharedThreadWorker(SharedThreadWorker),
    /// Datagrams for this worker's QUIC connections, and events of connections whose socket this worker reads.
    #[cfg_attr(not(feature = "quic"), expect(dead_code, reason = "QUIC needs the feature"))]
    Quic(Box<QuicMail>),
    /// Applies to connections accepted from now on.
    ReloadTls {
        listener: u16,
        config: Arc<rustls::ServerConfig>,
    },
    ShutDown {
        deadline: Instant,
    },
}

/// Wakes a worker that waits for a commit. A worker whose mailbox is full is awake.
pub(crate) fn wake_for_commit(worker: &MailboxSender<MailboxItem>) {
    if worker.try_send(MailboxItem::Committed).is_ok() {
        worker.wake();
    }
}

impl WeightBytes for MailboxItem {
    fn weight_bytes(&self) -> usize {
        match self {
            MailboxItem::Mail(mail) => mail.size_bytes(),
            MailboxItem::Quic(mail) => mail.size_bytes(),
            _ => 0,
        }
    }
}
