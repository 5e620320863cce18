//! A question about the access rules of a client, which another system answers.
//!
//! The worker passes it to the authenticator and continues. Reading from the client is paused until the answer arrives
//! in the worker's mailbox. The answer itself is stored with the login of the client.

use std::any::Any;
use std::fmt;

use broker::{AccessQuestion, ConnEpoch, ConnSlot};

use crate::client_presence::ClientPresence;
use crate::slots::ConnGeneration;

/// The connection that waits. Generation and epoch distinguish it from a later connection in the same slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AccessTicket {
    pub(crate) conn: ConnSlot,
    pub(crate) generation: ConnGeneration,
    pub(crate) epoch: ConnEpoch,
}

/// Reports to the worker whether there is an answer.
type Reply = Box<dyn FnOnce(bool) + Send>;

/// A question without an answer. A question that is dropped disconnects the client.
pub struct OpenAccessQuestion {
    question: Option<AccessQuestion>,
    /// `None`: the question is closed. May wait until the mailbox of the worker has space.
    reply: Option<Reply>,
    presence: ClientPresence,
}

impl OpenAccessQuestion {
    pub(crate) fn new(question: AccessQuestion, presence: ClientPresence, reply: Reply) -> OpenAccessQuestion {
        OpenAccessQuestion {
            question: Some(question),
            reply: Some(reply),
            presence,
        }
    }

    /// Calls back when the client has closed its connection. The callback must not block: it runs on the thread of a
    /// worker.
    pub fn on_gone(&self, callback: impl FnOnce() + Send + 'static) {
        self.presence.on_gone(Box::new(callback));
    }

    /// Takes the question that the access rules of the session have created. `None` if it is of another type, or taken.
    pub fn take<Q: Any>(&mut self) -> Option<Q> {
        let AccessQuestion(question) = self.question.take()?;
        question.downcast().ok().map(|question| *question)
    }

    /// The answer is stored. May wait until the mailbox of the worker has space.
    pub fn answered(mut self) {
        self.close(true);
    }

    /// Drops the question without an answer.
    pub(crate) fn discard(mut self) {
        self.reply = None;
    }

    fn close(&mut self, is_answered: bool) {
        // No connection waits for the answer to a question of a closed one.
        if let Some(reply) = self.reply.take()
            && !self.presence.is_gone()
        {
            reply(is_answered);
        }
    }
}

impl Drop for OpenAccessQuestion {
    fn drop(&mut self) {
        self.close(false);
    }
}

impl fmt::Debug for OpenAccessQuestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenAccessQuestion").finish_non_exhaustive()
    }
}
