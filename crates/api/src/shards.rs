//! Runs closures on shards from an async endpoint: on one shard, on the shard of a client, or on all.
//!
//! A shard answers between two batches of packets, so within milliseconds. If a shard does not answer, the request
//! fails with
//! 503 instead of hanging.

use std::time::Duration;

use axum::extract::FromRef;
use broker::{Now, Shard, ShardId, ShardStats};
use net::{CallError, Reply};
use web::guard::AuthenticatedUser;
use web::problem::HttpProblem;

use crate::app::App;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The shards of the server.
#[derive(Clone)]
pub struct Shards {
    net: net::ServerHandle,
}

impl FromRef<App> for Shards {
    fn from_ref(app: &App) -> Shards {
        Shards { net: app.part() }
    }
}

impl Shards {
    /// Returns the number of shards.
    pub fn count(&self) -> u16 {
        self.net.shards()
    }

    pub async fn on_shard<R: Send + 'static>(
        &self,
        shard: ShardId,
        f: impl FnOnce(&mut Shard, Now) -> R + Send + 'static,
    ) -> Result<R, HttpProblem> {
        answer(self.net.call_async(shard, f).map_err(problem)?).await
    }

    /// Returns the shard of a client's session. An empty client ID belongs to no session.
    pub fn home_of(&self, client_id: &str) -> ShardId {
        broker::home_shard(client_id, self.net.shards()).unwrap_or(ShardId(0))
    }

    /// Runs `f` on the shard of a client. Fails with 404 if there is no session, or the login has a role in a namespace
    /// to which the session does not belong.
    pub async fn on_client<R: Send + 'static>(
        &self,
        login: &AuthenticatedUser,
        client_id: &str,
        f: impl FnOnce(&mut Shard, Now) -> Option<R> + Send + 'static,
    ) -> Result<R, HttpProblem> {
        let (wanted, prefix) = (client_id.to_owned(), login.topic_prefix());
        let of_namespace = move |shard: &mut Shard, now| match prefix {
            Some(prefix) if !shard.inspect().is_client_below(&wanted, &prefix) => None,
            _ => f(shard, now),
        };
        let found = self.on_shard(self.home_of(client_id), of_namespace).await?;
        found.ok_or_else(|| HttpProblem::not_found(format!("no session has the client ID {client_id:?}")))
    }

    /// Runs `f` on all shards in parallel. Results are in the order of the shards.
    pub async fn on_all_shards<R: Send + 'static>(
        &self,
        f: impl Fn(&mut Shard, Now) -> R + Send + Sync + 'static,
    ) -> Result<Vec<R>, HttpProblem> {
        let replies = self.net.call_all_async(f).map_err(problem)?;
        let mut answers = Vec::with_capacity(replies.len());
        for reply in replies {
            answers.push(answer(reply).await?);
        }
        Ok(answers)
    }

    pub async fn stats(&self) -> Result<ShardStats, HttpProblem> {
        let mut sum = ShardStats::default();
        for stats in self.on_all_shards(|shard, _| shard.inspect().stats()).await? {
            sum.add(&stats);
        }
        Ok(sum)
    }
}

async fn answer<R>(reply: Reply<R>) -> Result<R, HttpProblem> {
    match tokio::time::timeout(ANSWER_TIMEOUT, reply).await {
        Ok(answer) => answer.map_err(problem),
        Err(_) => Err(problem(CallError::Timeout)),
    }
}

fn problem(error: CallError) -> HttpProblem {
    HttpProblem::unavailable(error.to_string())
}
