//! Comments on alarms.

use super::{Entities, EntityError};
use crate::ids::{AlarmId, EntityId};
use crate::model::{AlarmComment, Entity};
use crate::page::PageLink;
use crate::repository::{RepositoryChange, Selection};

/// Comments per alarm.
pub(super) const COMMENTS_MAX: usize = 1000;

impl Entities {
    pub fn save_alarm_comment(&self, comment: AlarmComment, now_ms: i64) -> Result<AlarmComment, EntityError> {
        let _changing = self.changing();
        if comment.comment["text"]
            .as_str()
            .is_none_or(|text| text.trim().is_empty())
        {
            return Err(EntityError::invalid("Alarm comment can't be empty!"));
        }
        let stored = self.stored(&comment, "alarm comment")?;
        let count = self.repository.count(AlarmComment::KIND, &of_alarm(comment.alarm_id))?;
        if stored.is_none() && count >= COMMENTS_MAX {
            return Err(EntityError::invalid(format!(
                "An alarm can have at most {COMMENTS_MAX} comments!"
            )));
        }
        self.put_one(comment, stored.as_ref(), now_ms)
    }

    /// Called when the alarm is deleted.
    pub fn delete_alarm_comments_of(&self, alarm: AlarmId) -> Result<(), EntityError> {
        let page = self.page::<AlarmComment>(&of_alarm(alarm), &PageLink::new(COMMENTS_MAX, 0))?;
        let ids = page.data.iter().filter_map(Entity::id);
        let changes: Vec<RepositoryChange> = ids
            .map(|id| RepositoryChange::Delete(EntityId::new(AlarmComment::KIND, id)))
            .collect();
        if changes.is_empty() {
            return Ok(());
        }
        Ok(self.repository.apply(&changes)?)
    }
}

fn of_alarm(alarm: AlarmId) -> Selection {
    Selection {
        parent: Some(alarm.0),
        ..Selection::default()
    }
}
