//! Asking shards from an async endpoint: one, the home of a client, or all and the sum.
//!
//! A shard answers between two batches of packets, so within milliseconds; one that does not makes the request fail with
//! 503, it never makes it hang.

use std::time::Duration;

use broker::{Now, Shard, ShardId, Stats};
use net::{CallError, Reply};

use crate::app::App;
use crate::problem::Problem;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

impl App {
    pub async fn on_shard<R: Send + 'static>(
        &self,
        shard: ShardId,
        f: impl FnOnce(&mut Shard, Now) -> R + Send + 'static,
    ) -> Result<R, Problem> {
        answer(self.net().ask(shard, f).map_err(problem)?).await
    }

    /// Runs `f` where the client's session lives. An empty client id belongs to no session.
    pub async fn on_home<R: Send + 'static>(
        &self,
        client_id: &str,
        f: impl FnOnce(&mut Shard, Now) -> R + Send + 'static,
    ) -> Result<R, Problem> {
        let home = Shard::home(client_id, self.net().shards()).unwrap_or(ShardId(0));
        self.on_shard(home, f).await
    }

    /// Runs `f` on every shard at the same time; results in the order of the shards.
    pub async fn on_all<R: Send + 'static>(
        &self,
        f: impl Fn(&mut Shard, Now) -> R + Send + Sync + 'static,
    ) -> Result<Vec<R>, Problem> {
        let replies = self.net().ask_all(f).map_err(problem)?;
        let mut answers = Vec::with_capacity(replies.len());
        for reply in replies {
            answers.push(answer(reply).await?);
        }
        Ok(answers)
    }

    pub async fn stats(&self) -> Result<Stats, Problem> {
        let mut sum = Stats::default();
        for stats in self.on_all(|shard, _| shard.stats()).await? {
            sum.add(&stats);
        }
        Ok(sum)
    }
}

async fn answer<R>(reply: Reply<R>) -> Result<R, Problem> {
    match tokio::time::timeout(ANSWER_TIMEOUT, reply).await {
        Ok(answer) => answer.map_err(problem),
        Err(_) => Err(problem(CallError::Timeout)),
    }
}

fn problem(error: CallError) -> Problem {
    Problem::unavailable(error.to_string())
}
