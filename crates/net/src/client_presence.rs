//! Whether the client that a question is about is still connected.
//!
//! A question to another system can take long. When the connection closes, the worker reports it, so that the question
//! does not wait any longer.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Callback = Box<dyn FnOnce() + Send>;

/// Shared by the worker of a connection and the open questions about its client.
#[derive(Clone, Default)]
pub(crate) struct ClientPresence(Arc<Mutex<PresenceState>>);

#[derive(Default)]
struct PresenceState {
    is_gone: bool,
    callbacks: Vec<Callback>,
}

impl ClientPresence {
    pub(crate) fn is_gone(&self) -> bool {
        self.lock().is_gone
    }

    /// Calls back when the connection has closed, on the thread of its worker. At once if it is closed already.
    pub(crate) fn on_gone(&self, callback: Callback) {
        let mut state = self.lock();
        if !state.is_gone {
            return state.callbacks.push(callback);
        }
        drop(state);
        callback();
    }

    /// The connection has closed.
    pub(crate) fn leave(&self) {
        let mut state = self.lock();
        state.is_gone = true;
        let callbacks = std::mem::take(&mut state.callbacks);
        drop(state);
        callbacks.into_iter().for_each(|callback| callback());
    }

    // Every update leaves the state valid, so a panic cannot leave it inconsistent.
    fn lock(&self) -> MutexGuard<'_, PresenceState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A client with open questions: usually one, and two while it authenticates again and acts.
#[derive(Default)]
pub(crate) struct WaitingClient {
    pub(crate) presence: ClientPresence,
    pub(crate) questions: u32,
}
