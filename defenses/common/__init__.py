"""What several defences are made of: clipping, noise, accounting. No defence lives here.

May import privbench/execution/ and what stands below it; never a defence's file, attacks/ or reports/.
"""
