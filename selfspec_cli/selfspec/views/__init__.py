"""Pictures of traces and calibrations, as strings: no model, no kernel, no script, no network."""
