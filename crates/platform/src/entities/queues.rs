//! Queues of rule chains. ThingsBoard's three default queues always exist, and can be changed.

use super::{Entities, EntityError, check_name};
use crate::ids::QueueId;
use crate::model::{DeviceProfile, Entity, MAIN_QUEUE, Queue};
use crate::repository::{RepositoryChange, RepositoryError};

impl Entities {
    /// Returns the queues in the order of creation.
    pub fn queues(&self, now_ms: i64) -> Result<Vec<Queue>, EntityError> {
        let _changing = self.changing();
        let mut all = self.stored_queues()?;
        for default in Queue::defaults() {
            if all.iter().all(|queue| queue.name != default.name) {
                all.push(self.put_one(default, None, now_ms)?);
            }
        }
        Ok(all)
    }

    pub fn stored_queues(&self) -> Result<Vec<Queue>, RepositoryError> {
        let mut all = Vec::new();
        let mut problem = Ok(());
        self.repository
            .for_each(Queue::KIND, &mut |record| match record.read() {
                Ok(queue) => all.push(queue),
                Err(error) => problem = Err(error),
            })?;
        problem.map(|()| all)
    }

    pub fn save_queue(&self, mut queue: Queue, now_ms: i64) -> Result<Queue, EntityError> {
        let _changing = self.changing();
        check_name("Queue name", &queue.name)?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if !queue.name.chars().all(is_plain) {
            return Err(EntityError::invalid(format!(
                "Queue name: \"{}\" contains a character other than ASCII alphanumerics, '.', '_' and '-'!",
                queue.name
            )));
        }
        if queue.topic.is_empty() {
            queue.topic = format!("tb_rule_engine.{}", queue.name.to_lowercase());
        }
        check_strategies(&queue)?;
        let stored = self.stored(&queue, "queue")?;
        if stored.as_ref().is_some_and(|stored| stored.name != queue.name) {
            return Err(EntityError::invalid("Can't change queue name!"));
        }
        self.put_one(queue, stored.as_ref(), now_ms)
    }

    pub fn delete_queue(&self, id: QueueId) -> Result<(), EntityError> {
        let _changing = self.changing();
        let queue: Queue = self.get(id.0)?;
        if queue.name == MAIN_QUEUE {
            return Err(EntityError::invalid("Deletion of the queue Main is prohibited!"));
        }
        let mut is_used = false;
        self.repository.for_each(DeviceProfile::KIND, &mut |record| {
            let profile = record.read::<DeviceProfile>();
            is_used |= profile.is_ok_and(|profile| profile.default_queue_name.as_deref() == Some(&*queue.name));
        })?;
        if is_used {
            return Err(EntityError::invalid(
                "The queue referenced by the device profiles cannot be deleted!",
            ));
        }
        Ok(self.repository.apply(&[RepositoryChange::Delete(id.entity())])?)
    }
}

fn check_strategies(queue: &Queue) -> Result<(), EntityError> {
    if queue.submit_strategy.is_none() {
        return Err(EntityError::invalid("Queue submit strategy can't be null!"));
    }
    let Some(processing) = &queue.processing_strategy else {
        return Err(EntityError::invalid("Queue processing strategy can't be null!"));
    };
    let problem = if processing.retries < 0 {
        "Queue processing strategy retries can't be less then 0!"
    } else if !(0.0..=100.0).contains(&processing.failure_percentage) {
        "Queue processing strategy failure percentage should be in a range from 0 to 100!"
    } else if processing.pause_between_retries < 0 {
        "Queue processing strategy pause between retries can't be less then 0!"
    } else if processing.max_pause_between_retries < processing.pause_between_retries {
        "Queue processing strategy max pause between retries can't be less then pause between retries!"
    } else {
        return Ok(());
    };
    Err(EntityError::invalid(problem))
}
