links:  # static tools cannot follow setuptools' import hook: give them a real `noria` folder (git-ignored)
	mkdir -p build/links/noria
	for d in bucketing configs kernels runtime; do ln -sfn ../../../$$d build/links/noria/$$d; done
