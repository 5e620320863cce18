//! The client for which a question is asked. It may close its connection while its question waits for other ones.
//!
//! A question that waits ends then, so that clients that connect and disconnect do not occupy the places of others. A
//! question that was sent does not: its answer is cached and can be a failed login, and the other system may work on it
//! in any case. Otherwise such clients could exceed `max_concurrent` and the limit of failed logins.

use std::future::{Future, pending};

use tokio::sync::watch;

tokio::task_local! {
    static CURRENT: AskingClient;
}

/// Reports whether the client is still connected. The default is a question of the server itself.
#[derive(Clone, Debug, Default)]
pub struct AskingClient(Option<watch::Receiver<bool>>);

impl AskingClient {
    /// Returns a client and the function that reports its end. The function does not block.
    pub fn new() -> (AskingClient, impl FnOnce() + Send + 'static) {
        let (sender, receiver) = watch::channel(false);
        let leave = move || {
            sender.send_replace(true);
        };
        (AskingClient(Some(receiver)), leave)
    }

    /// Returns the client of the current task.
    pub fn current() -> AskingClient {
        CURRENT.try_with(AskingClient::clone).unwrap_or_default()
    }

    /// Asks a question for the client.
    pub async fn ask<T>(self, question: impl Future<Output = T>) -> T {
        CURRENT.scope(self, question).await
    }

    pub fn is_gone(&self) -> bool {
        self.0.as_ref().is_some_and(|gone| *gone.borrow())
    }

    /// Waits until the client has closed its connection.
    pub(crate) async fn gone(mut self) {
        if let Some(gone) = &mut self.0
            && gone.wait_for(|is_gone| *is_gone).await.is_ok()
        {
            return;
        }
        // The question was answered, or is not for a client.
        pending().await
    }
}
