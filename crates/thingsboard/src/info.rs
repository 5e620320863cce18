//! Additional fields of entities in lists: title of the customer, name of the profile, activity.

use std::collections::HashMap;

use platform::ids::{CustomerId, DeviceId};
use platform::model::{Asset, Customer, Device, Entity};
use serde_json::{Map, Value};

use super::call::ApiCall;
use super::failure::ThingsboardError;

/// Caches the customers of one answer.
pub struct Infos<'c> {
    call: &'c ApiCall,
    customers: HashMap<CustomerId, (Value, bool)>,
}

impl<'c> Infos<'c> {
    pub fn new(call: &'c ApiCall) -> Infos<'c> {
        Infos {
            call,
            customers: HashMap::new(),
        }
    }

    pub fn device(&mut self, device: &Device) -> Result<Value, ThingsboardError> {
        let mut info = fields(device);
        self.put_customer(&mut info, device.customer_id)?;
        info.insert("deviceProfileName".into(), device.kind.as_str().into());
        let is_active = self.call.platform().is_active(device.id.unwrap_or(DeviceId::NULL));
        info.insert("active".into(), is_active.into());
        Ok(Value::Object(info))
    }

    pub fn asset(&mut self, asset: &Asset) -> Result<Value, ThingsboardError> {
        let mut info = fields(asset);
        self.put_customer(&mut info, asset.customer_id)?;
        info.insert("assetProfileName".into(), asset.kind.as_str().into());
        Ok(Value::Object(info))
    }

    fn put_customer(
        &mut self,
        info: &mut Map<String, Value>,
        customer: Option<CustomerId>,
    ) -> Result<(), ThingsboardError> {
        let (title, is_public) = self.customer(customer.unwrap_or_default())?;
        info.insert("customerTitle".into(), title);
        info.insert("customerIsPublic".into(), is_public.into());
        Ok(())
    }

    fn customer(&mut self, id: CustomerId) -> Result<(Value, bool), ThingsboardError> {
        if id == CustomerId::NULL {
            return Ok((Value::Null, false));
        }
        if let Some(known) = self.customers.get(&id) {
            return Ok(known.clone());
        }
        let customer: Option<Customer> = self.call.entities().find(id.0)?;
        let found = customer.map_or((Value::Null, false), |customer| {
            (customer.title.as_str().into(), is_public(&customer))
        });
        self.customers.insert(id, found.clone());
        Ok(found)
    }
}

pub fn is_public(customer: &Customer) -> bool {
    let info = customer.additional_info.as_ref();
    info.and_then(|info| info["isPublic"].as_bool()).unwrap_or(false)
}

/// Returns the entity's JSON fields.
pub fn fields<E: Entity>(entity: &E) -> Map<String, Value> {
    match serde_json::to_value(entity) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    }
}

/// Returns the named fields of an entity.
pub fn only<E: Entity>(entity: &E, names: &[&str]) -> Value {
    let mut fields = fields(entity);
    fields.retain(|name, _| names.contains(&name.as_str()));
    Value::Object(fields)
}
