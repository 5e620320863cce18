//! Assets, dashboards, rule chains and relations.

use super::{Entities, EntityError, check_name, delete_with_all};
use crate::ids::{AssetProfileId, DashboardId, EntityId, EntityType, RuleChainId, TenantId, Uuid};
use crate::model::{Asset, AssetProfile, Dashboard, DeviceProfile, Entity, Queue, Relation, RuleChain};
use crate::page::PageLink;
use crate::repository::{RepositoryChange, Selection};

impl Entities {
    pub fn save_asset(&self, mut asset: Asset, now_ms: i64) -> Result<Asset, EntityError> {
        let _changing = self.changing();
        let stored = self.stored(&asset, "asset")?;
        match &stored {
            Some(stored) => asset.tenant_id = stored.tenant_id,
            None => self.check_limit(Asset::KIND, asset.tenant_id)?,
        }
        check_name("Asset name", &asset.name)?;
        self.check_customer("asset", asset.tenant_id, asset.customer_id)?;
        let mut changes = self.resolve_asset_profile(&mut asset, now_ms)?;
        asset.customer_id = Some(asset.customer_id.unwrap_or_default());
        changes.push(self.put(&mut asset, stored.as_ref(), now_ms)?);
        self.repository.apply(&changes)?;
        Ok(asset)
    }

    fn resolve_asset_profile(&self, asset: &mut Asset, now_ms: i64) -> Result<Vec<RepositoryChange>, EntityError> {
        let tenant = asset.tenant_id.0;
        if let Some(id) = asset.asset_profile_id {
            let profile: Option<AssetProfile> = self.find(id.0)?;
            let profile = profile.filter(|profile| profile.tenant_id == asset.tenant_id);
            let profile =
                profile.ok_or_else(|| EntityError::invalid("Asset is referencing to non existing asset profile!"))?;
            asset.kind = profile.name;
            return Ok(Vec::new());
        }
        if asset.kind.is_empty() {
            "default".clone_into(&mut asset.kind);
        }
        if let Some(profile) = self.find_by_name::<AssetProfile>(tenant, &asset.kind)? {
            asset.asset_profile_id = profile.id;
            return Ok(Vec::new());
        }
        let mut profile = AssetProfile {
            tenant_id: asset.tenant_id,
            name: asset.kind.clone(),
            ..AssetProfile::default()
        };
        let change = self.put(&mut profile, None, now_ms)?;
        asset.asset_profile_id = profile.id;
        Ok(vec![change])
    }

    pub fn save_asset_profile(&self, mut profile: AssetProfile, now_ms: i64) -> Result<AssetProfile, EntityError> {
        let _changing = self.changing();
        check_name("Asset profile name", &profile.name)?;
        let stored = self.stored(&profile, "asset profile")?;
        if let Some(stored) = &stored {
            profile.tenant_id = stored.tenant_id;
        }
        self.check_defaults(
            "Asset",
            profile.tenant_id,
            profile.default_rule_chain_id,
            profile.default_dashboard_id,
            profile.default_queue_name.as_deref(),
        )?;
        self.put_one(profile, stored.as_ref(), now_ms)
    }

    /// Checks that the entities named by a profile belong to its tenant.
    pub(super) fn check_defaults(
        &self,
        what: &str,
        tenant: TenantId,
        chain: Option<RuleChainId>,
        dashboard: Option<DashboardId>,
        queue: Option<&str>,
    ) -> Result<(), EntityError> {
        if let Some(id) = chain {
            let chain: Option<RuleChain> = self.find(id.0)?;
            if chain.is_none_or(|chain| chain.tenant_id != tenant) {
                return Err(EntityError::invalid("Can't assign non-existent rule chain!"));
            }
        }
        if let Some(id) = dashboard {
            let dashboard: Option<Dashboard> = self.find(id.0)?;
            if dashboard.is_none_or(|dashboard| dashboard.tenant_id != tenant) {
                return Err(EntityError::invalid("Can't assign non-existent dashboard!"));
            }
        }
        let Some(name) = queue.filter(|name| !name.is_empty()) else {
            return Ok(());
        };
        let is_default = Queue::defaults().iter().any(|queue| queue.name == name);
        if is_default || self.stored_queues()?.iter().any(|queue| queue.name == name) {
            return Ok(());
        }
        Err(EntityError::invalid(format!(
            "{what} profile is referring to non-existent queue!"
        )))
    }

    /// Checks that no profile uses the entity as its default.
    fn check_no_default(
        &self,
        what: &str,
        tenant: TenantId,
        is_meant: impl Fn(&DeviceProfile) -> bool,
        is_meant_too: impl Fn(&AssetProfile) -> bool,
    ) -> Result<(), EntityError> {
        let mut used_by = None;
        self.repository.for_each(AssetProfile::KIND, &mut |record| {
            let profile = record.read::<AssetProfile>();
            if profile.is_ok_and(|profile| profile.tenant_id == tenant && is_meant_too(&profile)) {
                used_by = Some("asset");
            }
        })?;
        self.repository.for_each(DeviceProfile::KIND, &mut |record| {
            let profile = record.read::<DeviceProfile>();
            if profile.is_ok_and(|profile| profile.tenant_id == tenant && is_meant(&profile)) {
                used_by = Some("device");
            }
        })?;
        match used_by {
            Some(kind) => Err(EntityError::invalid(format!(
                "The {what} referenced by the {kind} profiles cannot be deleted!"
            ))),
            None => Ok(()),
        }
    }

    pub fn delete_dashboard(&self, dashboard: &Dashboard) -> Result<(), EntityError> {
        let is_it = |id: Option<DashboardId>| id.is_some() && id == dashboard.id;
        self.check_no_default(
            "dashboard",
            dashboard.tenant_id,
            |profile| is_it(profile.default_dashboard_id),
            |profile| is_it(profile.default_dashboard_id),
        )?;
        self.delete(dashboard)
    }

    pub fn delete_asset_profile(&self, id: AssetProfileId) -> Result<(), EntityError> {
        let _changing = self.changing();
        let profile: AssetProfile = self.get(id.0)?;
        if profile.default {
            return Err(EntityError::invalid("Deletion of Default Asset Profile is prohibited!"));
        }
        if self.repository.count(Asset::KIND, &of_parent(id.0))? > 0 {
            return Err(EntityError::invalid(
                "The asset profile referenced by the assets cannot be deleted!",
            ));
        }
        Ok(self.repository.apply(&delete_with_all(id.entity()))?)
    }

    pub fn save_dashboard(&self, mut dashboard: Dashboard, now_ms: i64) -> Result<Dashboard, EntityError> {
        let _changing = self.changing();
        check_name("Dashboard title", &dashboard.title)?;
        dashboard.name.clone_from(&dashboard.title);
        let stored = self.stored(&dashboard, "dashboard")?;
        match &stored {
            Some(stored) => dashboard.tenant_id = stored.tenant_id,
            None => self.check_limit(Dashboard::KIND, dashboard.tenant_id)?,
        }
        self.put_one(dashboard, stored.as_ref(), now_ms)
    }

    /// Deletes an entity that nothing references, such as an asset.
    pub fn delete<E: Entity>(&self, entity: &E) -> Result<(), EntityError> {
        let _changing = self.changing();
        let id = entity.id().ok_or(EntityError::NotFound)?;
        Ok(self.repository.apply(&delete_with_all(EntityId::new(E::KIND, id)))?)
    }

    /// Saves the chain itself. [`Entities::save_rule_chain_metadata`] saves its nodes.
    pub fn save_rule_chain(&self, mut chain: RuleChain, now_ms: i64) -> Result<RuleChain, EntityError> {
        let _changing = self.changing();
        check_name("Rule chain name", &chain.name)?;
        let stored = self.stored(&chain, "rule chain")?;
        if let Some(stored) = &stored {
            chain.tenant_id = stored.tenant_id;
            chain.root = stored.root;
            chain.metadata.clone_from(&stored.metadata);
        } else {
            self.check_limit(RuleChain::KIND, chain.tenant_id)?;
            chain.root = false;
        }
        chain.kind.get_or_insert_with(|| "CORE".to_owned());
        self.put_one(chain, stored.as_ref(), now_ms)
    }

    /// Saves the nodes without a check. [`crate::chain::Chain::compile`] reports which of them run.
    pub fn save_rule_chain_metadata(
        &self,
        id: RuleChainId,
        metadata: serde_json::Value,
        now_ms: i64,
    ) -> Result<RuleChain, EntityError> {
        let _changing = self.changing();
        let stored: RuleChain = self.get(id.0)?;
        let chain = RuleChain {
            metadata: Some(metadata),
            version: None,
            ..stored.clone()
        };
        self.put_one(chain, Some(&stored), now_ms)
    }

    /// Assigns an id to each node without one, or with one that is not in `known`. A node cannot take the id of
    /// another chain's node.
    pub fn identify_nodes(&self, metadata: &mut serde_json::Value, known: &[Uuid], now_ms: i64) {
        for node in metadata["nodes"].as_array_mut().into_iter().flatten() {
            let id = node["id"]["id"].as_str().and_then(Uuid::parse);
            if id.is_some_and(|id| known.contains(&id)) {
                continue;
            }
            let id = self.new_id(now_ms);
            node["id"] = serde_json::json!(EntityId::new(EntityType::RuleNode, id));
            node["createdTime"] = id.created_ms().into();
        }
    }

    pub fn root_chain(&self, tenant: TenantId) -> Result<Option<RuleChain>, EntityError> {
        let selection = Selection {
            tenant: Some(tenant.0),
            ..Selection::default()
        };
        for number in 0.. {
            let page = self.page::<RuleChain>(&selection, &PageLink::new(100, number))?;
            if let Some(root) = page.data.into_iter().find(|chain| chain.root) {
                return Ok(Some(root));
            }
            if !page.has_next {
                break;
            }
        }
        Ok(None)
    }

    pub fn set_root_chain(&self, id: RuleChainId, now_ms: i64) -> Result<RuleChain, EntityError> {
        let _changing = self.changing();
        let stored: RuleChain = self.get(id.0)?;
        let mut changes = Vec::new();
        if let Some(old) = self.root_chain(stored.tenant_id)? {
            let mut chain = RuleChain {
                root: false,
                ..old.clone()
            };
            changes.push(self.put(&mut chain, Some(&old), now_ms)?);
        }
        let mut chain = RuleChain {
            root: true,
            version: None,
            ..stored.clone()
        };
        changes.push(self.put(&mut chain, Some(&stored), now_ms)?);
        // If the chain is the root already, both changes concern this chain. The second one has no version check, so
        // it applies.
        self.repository.apply(&changes)?;
        Ok(chain)
    }

    pub fn delete_rule_chain(&self, id: RuleChainId) -> Result<(), EntityError> {
        let _changing = self.changing();
        let chain: RuleChain = self.get(id.0)?;
        if chain.root {
            return Err(EntityError::invalid(
                "Deletion of Root Tenant Rule Chain is prohibited!",
            ));
        }
        self.check_no_default(
            "rule chain",
            chain.tenant_id,
            |profile| profile.default_rule_chain_id == Some(id),
            |profile| profile.default_rule_chain_id == Some(id),
        )?;
        Ok(self.repository.apply(&delete_with_all(id.entity()))?)
    }

    pub fn save_relation(&self, relation: &Relation) -> Result<(), EntityError> {
        check_name("Relation type", &relation.kind)?;
        Ok(self
            .repository
            .apply(&[RepositoryChange::PutRelation(relation.clone())])?)
    }

    pub fn delete_relation(&self, relation: &Relation) -> Result<(), EntityError> {
        Ok(self
            .repository
            .apply(&[RepositoryChange::DeleteRelation(relation.clone())])?)
    }
}

fn of_parent(id: crate::ids::Uuid) -> Selection {
    Selection {
        parent: Some(id),
        ..Selection::default()
    }
}
